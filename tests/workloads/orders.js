// Keeps two compiled functions busy below one that stays interpreted, until it is killed or its
// lifetime has passed.
'use strict';

const LIFE_MS = 600_000;

class Ledger {
  settle(turns) {
    let x = 1;
    for (let i = 0; i < turns; i++) x = (Math.imul(x, 1664525) + 1013904223) | 0;
    return x;
  }
}

const sort = (turns) => {
  let x = 7;
  for (let i = 0; i < turns; i++) x = (Math.imul(x, 22695477) + 1) | 0;
  return x;
};

function serve() {
  const ledger = new Ledger();
  const end = Date.now() + LIFE_MS;
  let sum = 0;
  while (Date.now() < end) sum ^= ledger.settle(300_000) ^ sort(100_000);
  return sum;
}

// Called once, so nothing ever compiles it.
function openShop() {
  return serve() + 1;
}

console.log(openShop());
