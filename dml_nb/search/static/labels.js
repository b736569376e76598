'use strict';
const form = document.getElementById('changes'), said = document.getElementById('said');
const boxes = [...document.querySelectorAll('input[data-path]')];
const key = `dml browse ${form.dataset.of}`;            // of these pictures in this index
let changes = JSON.parse(localStorage.getItem(key) || '{}');

function show() {
  const count = Object.keys(changes).length;
  for (const box of boxes) {
    const label = changes[box.dataset.path], take = box.nextElementSibling;
    box.value = label ?? '';
    take.setAttribute('aria-pressed', label === take.dataset.take);
  }
  form.elements.changes.value = JSON.stringify(changes);
  said.textContent = `${count} ${count === 1 ? 'label is' : 'labels are'} corrected`;
  document.getElementById('forget').hidden = !count;
}
function change(box, label) {
  if (label.trim()) changes[box.dataset.path] = label.trim();
  else delete changes[box.dataset.path];
  localStorage.setItem(key, JSON.stringify(changes));
  show();
}
for (const box of boxes) {
  const take = box.nextElementSibling;
  box.onchange = () => change(box, box.value);
  take.onclick = () => change(box, changes[box.dataset.path] === take.dataset.take ? ''
    : take.dataset.take);
}
document.getElementById('forget').onclick = () => {
  changes = {};
  localStorage.removeItem(key);
  show();
};
show();
