'use strict';
addEventListener('keydown', e => {
  if (e.target.matches('input, select') || e.altKey || e.ctrlKey || e.metaKey) return;
  const go = {ArrowLeft: 'before', ArrowRight: 'after', Escape: 'to-map'}[e.key];
  const link = go && document.getElementById(go);
  if (link) { e.preventDefault(); link.click(); }
});
