// A service that burns CPU in a known function and sends wall time and heap with Pyroscope's own
// SDK. Usage: shop.mjs ADDRESS SECONDS
import Pyroscope from "@pyroscope/nodejs";

const [, , serverAddress, seconds] = process.argv;
Pyroscope.init({ appName: "shop.node", serverAddress, tags: { region: "eu" }, flushIntervalMs: 5000 });
Pyroscope.start();

function burnInNode() {
  let sum = 0;
  for (let number = 0; number < 200_000; number++) sum += Math.sqrt(number);
  return sum;
}

const end = Date.now() + Number(seconds) * 1000;
const kept = [];
function round() {
  burnInNode();
  kept.push(new Array(1000).fill(kept.length));
  if (kept.length > 500) kept.length = 0;
  if (Date.now() < end) setImmediate(round);
  else Pyroscope.stop().then(() => process.exit(0));
}
round();
