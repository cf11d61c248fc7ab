"use strict";
// The heat map of a page: a column a second, a row a part of it. Two cells pick the time between them.
// `times` is the map's data; `host` has what the page lends: el, number, dark, measure, text, countText, pick.
const heatMap = (times, host) => {
  const { columns, rows } = times;
  const { el, number } = host;
  const LEVELS = 12, AXIS = 18, LABEL_PIXELS = 90;
  const canvas = el("heat"), context = canvas.getContext("2d");
  const entries = times.node.length;
  const cellOf = new Uint32Array(entries);
  // Of each cell, by both measures; which of them is shown, the page says.
  const counts = new Float64Array(columns * rows), weights = new Float64Array(columns * rows);
  let all = 0;
  for (let i = 0, cell = 0; i < entries; i++) {
    cell += times.at[i];
    cellOf[i] = cell;
    counts[cell] += times.count[i];
    weights[cell] += times.weight[i];
    all += times.count[i];
  }
  let sums = counts, most = 0;
  let wide = 4, high = 4, cursor = -1, mark = -1, picked = null;

  const level = (value) => Math.min(LEVELS, Math.ceil((value * LEVELS) / most));
  const colour = (shade) => {
    const part = (shade - 1) / (LEVELS - 1), mix = (from, to) => Math.round(from + (to - from) * part);
    return host.dark()
      ? `rgb(${mix(88, 255)} ${mix(40, 150)} ${mix(38, 60)})`
      : `rgb(${mix(255, 150)} ${mix(225, 0)} ${mix(205, 20)})`;
  };
  const clock = (cell) => {
    const at = times.start_ms + Math.floor(cell / rows) * times.column_ms + ((cell % rows) * times.column_ms) / rows;
    const date = new Date(at);
    return Number.isNaN(date.getTime()) ? "?" : date.toISOString().slice(11, 23);
  };
  const length = (ms) => (ms >= 1000 ? +(ms / 1000).toFixed(3) + " s" : ms >= 1 ? +ms.toFixed(3) + " ms" : +(ms * 1000).toFixed(3) + " µs");
  const span = (from, to) => {
    const cells = to - from + 1;
    return `${clock(from)} – ${clock(to + 1)} UTC (${length((cells * times.column_ms) / rows)})`;
  };
  const within = (from, to) => {
    let sum = 0;
    for (let cell = from; cell <= to; cell++) sum += sums[cell];
    return sum;
  };
  const x = (cell) => Math.floor(cell / rows) * wide;
  const y = (cell) => (rows - 1 - (cell % rows)) * high;

  const draw = () => {
    const style = getComputedStyle(document.documentElement);
    const panel = el("times-scroll").clientWidth;
    wide = Math.max(2, Math.min(24, Math.floor(panel / columns)));
    high = Math.max(1, Math.min(8, Math.floor(200 / rows)));
    canvas.width = columns * wide;
    canvas.height = rows * high + AXIS;
    context.fillStyle = style.getPropertyValue("--line");
    context.fillRect(0, 0, columns * wide, rows * high);
    // What is covered and empty: time in which nothing ran.
    context.fillStyle = style.getPropertyValue("--panel");
    for (let cell = times.first; cell <= times.last; ) {
      const end = Math.min(times.last, cell - (cell % rows) + rows - 1);
      context.fillRect(x(cell), y(end), wide, (end - cell + 1) * high);
      cell = end + 1;
    }
    const shades = Array.from({ length: LEVELS + 1 }, (_, shade) => (shade ? colour(shade) : ""));
    sums.forEach((sum, cell) => {
      if (!sum) return;
      context.fillStyle = shades[level(sum)];
      context.fillRect(x(cell), y(cell), wide, high);
    });
    if (picked) {
      context.fillStyle = style.getPropertyValue("--page");
      context.globalAlpha = 0.72;
      for (let column = 0; column < columns; column++) {
        const first = column * rows, last = first + rows - 1;
        const from = Math.max(first, picked[0]), to = Math.min(last, picked[1]);
        if (from > to) { context.fillRect(column * wide, 0, wide, rows * high); continue; }
        context.fillRect(column * wide, (last - from + 1) * high, wide, (from - first) * high);
        context.fillRect(column * wide, 0, wide, (last - to) * high);
      }
      context.globalAlpha = 1;
    }
    for (const [cell, width] of [[mark, 2], [cursor, 1]]) {
      if (cell < 0) continue;
      context.strokeStyle = style.getPropertyValue("--accent");
      context.lineWidth = width;
      context.strokeRect(x(cell) - 0.5, y(cell) - 0.5, wide + 1, high + 1);
    }
    context.fillStyle = style.getPropertyValue("--soft");
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "bottom";
    const every = Math.max(1, Math.ceil(LABEL_PIXELS / wide));
    for (let column = 0; column < columns; column += every) {
      context.fillRect(column * wide, rows * high, 1, 4);
      context.fillText(clock(column * rows).slice(0, 8), column * wide + 3, rows * high + AXIS);
    }
  };
  const tell = () => {
    el("picked").textContent = picked ? `Shown: ${span(...picked)}, ${host.text(within(...picked))}` : "Shown: whole profile";
    el("whole").hidden = !picked;
    const hint = mark >= 0 ? `Begin ${clock(mark)}; choose the end. ` : "";
    el("heat-status").textContent =
      cursor < 0 ? hint || "Choose two cells for the flame graph of the time between them." : `${hint}${span(cursor, cursor)}: ${host.text(sums[cursor])}`;
  };
  const update = () => { draw(); tell(); };
  const show = (range) => {
    picked = range;
    mark = -1;
    host.pick(range && { from: range[0], to: range[1], cellOf });
    update();
  };
  const choose = (cell) => {
    if (cell < 0) return;
    if (mark < 0) { mark = cell; update(); }
    else show([Math.min(mark, cell), Math.max(mark, cell)]);
  };
  const cellAt = (event) => {
    const box = canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / wide), row = rows - 1 - Math.floor((event.clientY - box.top) / high);
    return column < 0 || column >= columns || row < 0 || row >= rows ? -1 : column * rows + row;
  };
  const moveTo = (cell) => {
    if (cell === cursor) return;
    cursor = cell;
    update();
  };

  canvas.addEventListener("mousemove", (event) => moveTo(cellAt(event)));
  canvas.addEventListener("mouseleave", () => moveTo(-1));
  canvas.addEventListener("click", (event) => choose(cellAt(event)));
  el("whole").onclick = () => show(null);
  el("times-scroll").addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: -rows, ArrowRight: rows, ArrowUp: 1, ArrowDown: -1 };
    if (event.key in steps) {
      const next = (cursor < 0 ? times.first : cursor) + (cursor < 0 ? 0 : steps[event.key]);
      if (next >= 0 && next < columns * rows) moveTo(next);
    } else if (event.key === "Enter" || event.key === " ") choose(cursor);
    else if (event.key === "Escape" && (mark >= 0 || picked)) show(null);
    else return;
    // The flame graph has these keys too.
    event.preventDefault();
    event.stopPropagation();
  });

  el("times").hidden = false;
  el("heat-top").textContent = length(times.column_ms);
  const lost = times.dropped ? `, ${number.format(times.dropped)} more whose time was not kept` : "";
  const weigh = () => {
    sums = host.measure() === 0 ? counts : weights;
    most = sums.reduce((most, sum) => Math.max(most, sum), 0);
    el("times-about").textContent =
      `${host.countText(all)} with their times${lost} · a cell is ${length(times.column_ms / rows)}, at most ${host.text(most)} in one`;
    tell();
  };
  weigh();
  return { draw, measure: () => { weigh(); draw(); } };
};
