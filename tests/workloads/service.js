// A service that is busy half of the time: 70 % of it in one function, 30 % in another.
'use strict';

function spendSeventy(turns) {
  let x = 1;
  for (let i = 0; i < turns; i++) x = (x * 31 + i) % 1000003;
  return x;
}

function spendThirty(turns) {
  let x = 3;
  for (let i = 0; i < turns; i++) x = (x * 17 + i) % 1000033;
  return x;
}

function serve() {
  const start = Date.now();
  let sum = 0;
  for (let i = 0; i < 10; i++) sum += spendSeventy(70000) + spendThirty(30000);
  setTimeout(serve, Date.now() - start);
  return sum;
}

serve();
