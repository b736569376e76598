'use strict';
const form = document.getElementById('batch'), canvas = document.getElementById('W');
const said = document.getElementById('said'), told = document.getElementById('told');
const ctx = canvas.getContext('2d');
let found = null, asked = 0, at = null;         // row and column of the pair that is told
function image(i) {
  const img = new Image();
  img.onload = draw;
  img.src = `/thumb/${i}`;
  return img;
}
let images = [], shown = '';
const look = name => getComputedStyle(canvas).getPropertyValue(`--${name}`).trim();

async function ask() {
  const mine = ++asked, query = new URLSearchParams(new FormData(form));
  const answer = await fetch(`/weights.json?${query}`), value = await answer.json();
  if (mine !== asked) return;
  said.className = answer.ok ? '' : 'error';
  if (!answer.ok) { said.textContent = value.error; return; }
  found = value;
  const key = found.pictures.join();
  if (key !== shown) { images = found.pictures.map(image); shown = key; }
  const most = Math.max(...found.W.flat().map(Math.abs));
  said.textContent = `${found.loss} is ${found.value.toPrecision(4)}; ` +
    `the largest weight is ${most.toPrecision(3)}`;
  canvas.dataset.ready = found.loss;
  history.replaceState(null, '', `/weights?${query}`);
  tell(at);
}

function tell(pair) {
  const n = found.W.length, inside = pair && pair.every(k => k >= 0 && k < n);
  at = inside ? pair : null;
  draw();
  if (!at) { told.textContent = ''; return; }
  const [anchor, other] = at.map(k => `${found.names[k]} (${found.labels[k]})`);
  const weight = found.W[at[0]][at[1]].toPrecision(3);
  told.textContent = `Weight ${weight} of the anchor ${anchor} with ${other}`;
}

function draw() {
  if (!found) return;
  const ratio = devicePixelRatio || 1, side = canvas.clientWidth, n = found.W.length;
  canvas.width = canvas.height = Math.round(side * ratio);
  ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
  ctx.clearRect(0, 0, side, side);
  const pulled = look('right'), pushed = look('wrong');
  const cell = side / (n + 1), most = Math.max(...found.W.flat().map(Math.abs)) || 1;
  for (let i = 0; i < n; i++) {
    for (const [x, y] of [[0, i + 1], [i + 1, 0]]) {
      if (images[i].naturalWidth) ctx.drawImage(images[i], x * cell, y * cell, cell, cell);
    }
    for (let j = 0; j < n; j++) {
      const w = found.W[i][j] / most;
      ctx.globalAlpha = Math.sqrt(Math.abs(w));
      ctx.fillStyle = w < 0 ? pulled : pushed;
      ctx.fillRect((j + 1) * cell, (i + 1) * cell, cell, cell);
      ctx.globalAlpha = 1;
    }
  }
  ctx.strokeStyle = look('ink');
  for (let i = 0; i <= n; i++) if (i === 0 || found.labels[i] !== found.labels[i - 1]) {
    const p = (i + 1) * cell;
    ctx.beginPath(); ctx.moveTo(p, cell); ctx.lineTo(p, side);
    ctx.moveTo(cell, p); ctx.lineTo(side, p); ctx.stroke();
  }
  if (at) {
    ctx.strokeStyle = getComputedStyle(canvas).color;
    ctx.lineWidth = 2;
    ctx.strokeRect((at[1] + 1) * cell, (at[0] + 1) * cell, cell, cell);
  }
}
function tellPointed(e) {
  if (!found) return;
  const r = canvas.getBoundingClientRect(), cell = r.width / (found.W.length + 1);
  const place = [e.clientY - r.top, e.clientX - r.left];
  const pair = place.map(length => Math.floor(length / cell) - 1);
  if (`${pair}` !== `${at}`) tell(pair);
}
canvas.addEventListener('pointermove', tellPointed);
canvas.addEventListener('click', tellPointed);
canvas.addEventListener('focus', () => { if (found && !at) tell([0, 0]); });
canvas.addEventListener('keydown', e => {
  const steps = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]};
  if (!at || !steps[e.key]) return;
  e.preventDefault();
  const last = found.W.length - 1, moved = at.map((k, side) => k + steps[e.key][side]);
  tell(moved.map(k => Math.min(Math.max(k, 0), last)));
});
form.addEventListener('input', e => {
  if (e.target.name === 'loss') { form.submit(); return; }
  const twin = form.querySelector(`[data-of="${e.target.name}"]`);
  if (e.target.dataset.of) form.elements[e.target.dataset.of].value = e.target.value;
  else if (twin) twin.value = e.target.value;
  ask();
});
form.addEventListener('submit', e => { e.preventDefault(); ask(); });
addEventListener('resize', draw);
ask();
