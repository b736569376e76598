'use strict';
const canvas = document.getElementById('map'), ctx = canvas.getContext('2d');
const said = document.getElementById('said'), picked = document.getElementById('picked');
const legend = document.getElementById('legend'), lassoButton = document.getElementById('lasso');
const kept = document.getElementById('kept'), release = document.getElementById('release');
const ring = document.getElementById('ring'), tip = document.getElementById('tip');
const narrow = document.getElementById('narrow');
let xy, codes, names = [], hues = [], N = 0, view = {s: 1, x: 0, y: 0}, lasso = null, lassoing = false;
let thumbs = new Map(), pointers = new Map(), moved = false, pinch = 0, hover = -1;
let members = [];                               // pictures of each class
let labels = null, base = 0;    // of each picture, where it has several; classes that are drawn
let chosen = new Set(), pointed = -1;           // classes kept in front, and the one pointed at
let front = new Map();                          // class in front -> its hue there

let look = {};                                  // what the style sheet says of colours
function readLook() {
  const style = getComputedStyle(canvas);
  for (const name of ['behind', 'strong', 'light', 'ink']) {
    look[name] = style.getPropertyValue(`--${name}`).trim();
  }
}
const hue = c => hues[c];                       // of the class; like classes have like hues
const inFront = c => !front.size || front.has(c);
const color = c => !inFront(c) ? look.behind :
  `hsl(${front.get(c) ?? hue(c) ?? 0} ${names[c] ? look.strong : '0%'} ${look.light})`;
const called = c => names[c] || 'no class';
const lead = i => labels ? labels[i].find(c => front.has(c)) ?? codes[i] : codes[i];    // shown as
const titled = i => labels ? labels[i].map(called).join(' | ') : called(codes[i]);
let place = {w: 0, h: 0, side: 0, left: 0, top: 0};     // of the map on the canvas, in pixels
function measure() {
  const w = canvas.clientWidth, h = canvas.clientHeight, side = Math.min(w, h) * .94;
  place = {w, h, side, left: (w - side) / 2, top: (h - side) / 2};
}
const px = i => place.left + view.x + xy[2 * i] * place.side * view.s;
const py = i => place.top + view.y + (1 - xy[2 * i + 1]) * place.side * view.s;

function visible() {
  const {w, h} = place, found = [];
  for (let i = 0; i < N; i++) {
    const x = px(i), y = py(i);
    if (x > -30 && y > -30 && x < w + 30 && y < h + 30) found.push(i);
  }
  return found;
}

const THUMB = 44;
function uncovered(found) {                     // one for each square of the map, at most
  const squares = new Map(), step = (THUMB + 2) / (place.side * view.s);
  for (const i of found) {
    const square = `${Math.floor(xy[2 * i] / step)} ${Math.floor(xy[2 * i + 1] / step)}`;
    const first = squares.get(square);
    if (first === undefined || inFront(lead(i)) > inFront(lead(first))) squares.set(square, i);
  }
  return [...squares.values()];
}

function draw() {
  measure();
  const ratio = devicePixelRatio || 1, {w, h} = place;
  if (canvas.width !== Math.round(w * ratio)) canvas.width = Math.round(w * ratio);
  if (canvas.height !== Math.round(h * ratio)) canvas.height = Math.round(h * ratio);
  ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
  ctx.clearRect(0, 0, w, h);
  const size = N > 20000 ? 2 : N > 3000 ? 3 : 5;
  const classes = [...names.keys()].slice(0, base);
  ctx.globalAlpha = .85;
  if (front.size) drawClasses(classes.filter(c => !inFront(c)), size);
  drawClasses(front.size ? [...front.keys()] : classes, front.size ? size + 2 : size);
  ctx.globalAlpha = 1;
  if (view.s > 2) {
    const near = uncovered(visible());
    near.sort((i, j) => inFront(lead(i)) - inFront(lead(j)));
    near.forEach(drawThumb);
  }
  mark();
  if (lasso && lasso.length > 1) {
    ctx.strokeStyle = look.ink;
    ctx.setLineDash([5, 4]);
    ctx.beginPath();
    lasso.forEach(([x, y], j) => j ? ctx.lineTo(x, y) : ctx.moveTo(x, y));
    ctx.closePath();
    ctx.stroke();
    ctx.setLineDash([]);
  }
}

function drawClasses(classes, size) {
  const {w, h} = place;
  for (const c of classes) {
    ctx.fillStyle = color(c);
    for (const i of members[c]) {
      const x = px(i), y = py(i);
      if (x > -9 && y > -9 && x < w + 9 && y < h + 9) {
        ctx.fillRect(x - size / 2, y - size / 2, size, size);
      }
    }
  }
}

function mark() {
  const {w, h} = place;
  const x = hover < 0 ? -1 : px(hover), y = hover < 0 ? -1 : py(hover);
  ring.hidden = tip.hidden = x < 0 || y < 0 || x > w || y > h;
  if (ring.hidden) return;
  ring.style.transform = `translate(${x}px, ${y}px)`;
  const name = titled(hover);
  if (tip.textContent !== name) tip.textContent = name;
  const left = Math.max(4, Math.min(x + 12, w - tip.offsetWidth - 4));
  const below = y < tip.offsetHeight + 16;
  tip.style.transform = `translate(${left}px, ${below ? y + 12 : y - tip.offsetHeight - 12}px)`;
}

function point(i) {
  hover = i;
  mark();
}

let waiting = false;
function redraw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; draw(); });
}

function drawThumb(i) {
  let img = thumbs.get(i);
  if (!img) {
    img = new Image();
    img.onload = redraw;
    img.src = `/thumb/${i}`;
    thumbs.set(i, img);
    if (thumbs.size > 2000) thumbs.delete(thumbs.keys().next().value);
  }
  if (!img.complete || !img.naturalWidth) return;
  const w = THUMB, x = px(i) - w / 2, y = py(i) - w / 2;
  ctx.globalAlpha = inFront(lead(i)) ? 1 : .35;
  ctx.drawImage(img, x, y, w, w);
  ctx.strokeStyle = color(lead(i));
  ctx.lineWidth = 2;
  ctx.strokeRect(x, y, w, w);
  ctx.globalAlpha = 1;
}

function zoom(factor, cx, cy) {
  const s = Math.min(Math.max(view.s * factor, .5), 400), f = s / view.s;
  view.x = (cx - place.left) - (cx - place.left - view.x) * f;
  view.y = (cy - place.top) - (cy - place.top - view.y) * f;
  view.s = s;
  redraw();
}

function closest(classes, x, y, within) {
  let best = -1, d = within * within;
  for (const c of classes) for (const i of members[c]) {
    const e = (px(i) - x) ** 2 + (py(i) - y) ** 2;
    if (e < d) { d = e; best = i; }
  }
  return best;
}
function nearest(x, y, within = 16) {
  const found = closest(front.keys(), x, y, within);
  return found >= 0 ? found : closest(names.keys(), x, y, within);
}

function inside(x, y, polygon) {
  let is = false;
  for (let i = 0, j = polygon.length - 1; i < polygon.length; j = i++) {
    const [xi, yi] = polygon[i], [xj, yj] = polygon[j];
    if ((yi > y) !== (yj > y) && x < (xj - xi) * (y - yi) / (yj - yi) + xi) is = !is;
  }
  return is;
}

function showPicked(found) {
  picked.replaceChildren();
  if (!found.length) { said.textContent = 'nothing lies in the lasso'; return; }
  const counts = new Map();
  for (const i of found) counts.set(codes[i], (counts.get(codes[i]) || 0) + 1);
  const most = [...counts].sort((a, b) => b[1] - a[1]).slice(0, 6);
  said.textContent = `${found.length} pictures: ` +
    most.map(([c, n]) => `${called(c)} ${n}`).join(', ') +
    (counts.size > 6 ? ` and ${counts.size - 6} more classes` : '');
  for (const i of found.slice(0, 60)) {
    const a = document.createElement('a'), img = new Image(56, 56);
    a.href = `/item/${i}`;
    img.src = `/thumb/${i}`;
    img.loading = 'lazy';
    img.alt = names[codes[i]] || `picture ${i}`;
    a.append(img);
    picked.append(a);
  }
}

const at = e => { const r = canvas.getBoundingClientRect();
  return [e.clientX - r.left, e.clientY - r.top]; };

canvas.addEventListener('pointerdown', e => {
  canvas.setPointerCapture(e.pointerId);
  pointers.set(e.pointerId, at(e));
  moved = false;
  if (lassoing || e.shiftKey) lasso = [at(e)];
});
canvas.addEventListener('pointermove', e => {
  const [x, y] = at(e);
  if (!pointers.has(e.pointerId)) {
    point(nearest(x, y));
    return;
  }
  const [x0, y0] = pointers.get(e.pointerId);
  if (Math.hypot(x - x0, y - y0) > 3) moved = true;
  pointers.set(e.pointerId, [x, y]);
  if (lasso) { lasso.push([x, y]); redraw(); return; }
  if (pointers.size === 2) {
    const [[ax, ay], [bx, by]] = [...pointers.values()], d = Math.hypot(ax - bx, ay - by);
    if (pinch) zoom(d / pinch, (ax + bx) / 2, (ay + by) / 2);
    pinch = d;
    return;
  }
  view.x += x - x0;
  view.y += y - y0;
  redraw();
});
function lift(e) {
  if (!pointers.delete(e.pointerId)) return;
  pinch = 0;
  const [x, y] = at(e);
  if (lasso) {
    const area = lasso, found = [];
    lasso = null;
    if (area.length > 3) for (let i = 0; i < N; i++) {
      if (inFront(lead(i)) && inside(px(i), py(i), area)) found.push(i);
    }
    showPicked(found);
    redraw();
  } else if (!moved && e.type === 'pointerup') {
    const found = nearest(x, y);
    if (found >= 0) location.href = `/item/${found}`;
  }
}
canvas.addEventListener('pointerup', lift);
canvas.addEventListener('pointercancel', lift);
canvas.addEventListener('pointerleave', () => point(-1));
canvas.addEventListener('wheel', e => {
  e.preventDefault();
  zoom(Math.exp(-e.deltaY * .0016), ...at(e));
}, {passive: false});

function toggleLasso() {
  lassoing = !lassoing;
  lassoButton.setAttribute('aria-pressed', lassoing);
  canvas.style.cursor = lassoing ? 'crosshair' : 'grab';
}
function home() { view = {s: 1, x: 0, y: 0}; redraw(); }
const middle = () => [place.w / 2, place.h / 2];
canvas.addEventListener('keydown', e => {
  const step = 60, keys = {
    ArrowLeft: () => view.x += step, ArrowRight: () => view.x -= step,
    ArrowUp: () => view.y += step, ArrowDown: () => view.y -= step,
    '+': () => zoom(1.4, ...middle()), '=': () => zoom(1.4, ...middle()),
    '-': () => zoom(1 / 1.4, ...middle()), 0: home, l: toggleLasso,
    Escape: () => { lasso = null; picked.replaceChildren(); said.textContent = ''; showAll(); },
    Enter: () => { const i = nearest(...middle(), 1e9); if (i >= 0) location.href = `/item/${i}`; },
  };
  if (!keys[e.key]) return;
  e.preventDefault();
  keys[e.key]();
  point(/^Arrow|^[-+=0]$/.test(e.key) ? nearest(...middle(), 1e9) : -1);
  redraw();
});

const apart = (a, b) => Math.min(Math.abs(a - b), 360 - Math.abs(a - b));
const freeHues = [210, 28, 320, 140, 265, 55, 0, 180];
function bringForward() {
  readLook();
  front = new Map();
  for (const c of pointed < 0 ? chosen : new Set([...chosen, pointed])) {
    const taken = [...front.values()], room = h => Math.min(360, ...taken.map(t => apart(h, t)));
    const own = hue(c) ?? 0;
    front.set(c, room(own) >= 45 ? own : freeHues.reduce((a, b) => room(b) > room(a) ? b : a));
  }
  [...legend.children].forEach((button, c) => {
    button.setAttribute('aria-pressed', chosen.has(c));
    button.firstChild.style.background = color(c);
  });
  kept.textContent = !chosen.size ? kept.dataset.hint :
    `${[...chosen].filter(c => names[c]).length} of ${names.filter(Boolean).length} classes ` +
    'kept in front';
  release.hidden = !chosen.size;
  redraw();
}
function pointAtClass(c) {
  if (c === pointed) return;
  pointed = c;
  bringForward();
}
function showAll() {
  chosen.clear();
  pointed = -1;
  bringForward();
}
const classOf = e => [...legend.children].indexOf(e.target.closest('button'));
legend.addEventListener('pointerover', e => {
  if (e.pointerType !== 'touch' && classOf(e) >= 0) pointAtClass(classOf(e));
});
legend.addEventListener('pointerleave', () => pointAtClass(-1));
legend.addEventListener('focusin', e => {       // Tab leads to one of them, arrows to the others
  for (const button of legend.children) button.tabIndex = button === e.target ? 0 : -1;
  if (e.target.matches(':focus-visible')) pointAtClass(classOf(e));
});
legend.addEventListener('focusout', () => pointAtClass(-1));
legend.addEventListener('click', e => {
  const c = classOf(e);
  if (c < 0) return;
  if (!chosen.delete(c)) chosen.add(c);
  pointed = -1;
  bringForward();
});
legend.addEventListener('keydown', e => {
  const steps = {ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1};
  if (e.key === 'Escape') showAll();
  else if (steps[e.key]) {
    const shown = shownClasses(), at = shown.indexOf(classOf(e)) + steps[e.key];
    e.preventDefault();
    if (shown[at] !== undefined) legend.children[shown[at]].focus();
  }
});
const shownClasses = () => [...legend.children].flatMap((button, c) => button.hidden ? [] : [c]);
narrow.oninput = () => {
  const words = narrow.value.toLowerCase().split(/\s+/).filter(Boolean);
  [...legend.children].forEach((button, c) => {
    button.hidden = !words.every(word => called(c).toLowerCase().includes(word));
  });
};
narrow.onkeydown = e => {
  if (e.key !== 'Enter' || !narrow.value.trim()) return;
  chosen = new Set(shownClasses());
  bringForward();
};
release.onclick = () => { showAll(); canvas.focus(); };
lassoButton.onclick = toggleLasso;
document.getElementById('home').onclick = home;
document.getElementById('in').onclick = () => zoom(1.5, ...middle());
document.getElementById('out').onclick = () => zoom(1 / 1.5, ...middle());
new ResizeObserver(redraw).observe(canvas);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', bringForward);

async function load(which) {
  const facts = await (await fetch(`/map.json?of=${which}`)).json();
  const raw = await (await fetch(`/map.bin?of=${which}`)).arrayBuffer();
  N = facts.pictures;
  names = facts.names;
  hues = facts.hues;
  xy = new Float32Array(raw, 0, 2 * N);
  codes = new Int32Array(raw, 8 * N, N);
  members = facts.members || names.map(() => []);
  base = facts.base ?? names.length;
  if (facts.members) {
    labels = Array.from({length: N}, () => []);
    members.forEach((of, c) => of.forEach(i => labels[i].push(c)));
  } else codes.forEach((c, i) => members[c].push(i));
  if (!legend.childElementCount) names.forEach((_, c) => {
    const button = document.createElement('button'), dot = document.createElement('span');
    const name = document.createElement('span');
    dot.className = 'dot';
    button.tabIndex = c ? -1 : 0;
    for (const part of called(c).split(/(?<=[._/-])/)) {
      name.append(part, document.createElement('wbr'));
    }
    button.append(dot, name);
    legend.append(button);
  });
  hover = -1;
  readLook();
  draw();
  bringForward();
  canvas.dataset.ready = which;
}
const which = document.getElementById('which');
if (which) which.onchange = () => load(which.value);
load('this');
