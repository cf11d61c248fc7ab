// Busy in two functions with names of their own until it is killed or its life is over.
'use strict';

const LIFE_MS = 150_000;

function renderTimeline(turns) {
  let x = 1;
  for (let i = 0; i < turns; i++) x = (Math.imul(x, 1664525) + 1013904223) | 0;
  return x;
}

function parseLedger(turns) {
  let x = 7;
  for (let i = 0; i < turns; i++) x = (Math.imul(x, 22695477) + 1) | 0;
  return x;
}

function drawFrame() {
  return renderTimeline(300_000) ^ parseLedger(100_000);
}

let sum = 0;
const end = Date.now() + LIFE_MS;
while (Date.now() < end) sum ^= drawFrame();
console.log(sum);
