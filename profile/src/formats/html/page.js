"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const el = (id) => document.getElementById(id);
  const { depth, name: nameOf } = data.nodes;
  const { function: functions, module: moduleOf, kind: kindOf } = data.names;
  const nodeCount = depth.length;
  const ROW = 18;
  const FONT = "12px ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace";
  const TABLE_ROWS = 200;
  const LABEL = 6; // kind of a bar that stands for the value of a label

  // ---- the tree: parents, subtree ends, totals of both measures -----------------------------
  const parent = new Int32Array(nodeCount);
  const end = new Int32Array(nodeCount);
  const open = [];
  let deepest = 0;
  for (let i = 0; i < nodeCount; i++) {
    while (open.length > depth[i]) end[open.pop()] = i;
    parent[i] = open.length ? open[open.length - 1] : -1;
    open.push(i);
    if (depth[i] > deepest) deepest = depth[i];
  }
  while (open.length) end[open.pop()] = nodeCount;
  let own, total, left;
  const sumUp = (values) => values.map((of) => {
    const sums = Float64Array.from(of);
    for (let i = nodeCount - 1; i > 0; i--) sums[parent[i]] += sums[i];
    return sums;
  });
  const load = (values) => {
    own = values;
    total = sumUp(own);
    // Left edge of each node in units of the measure: own samples stand to the right of callees.
    left = total.map((sums) => {
      const edges = new Float64Array(nodeCount);
      const next = new Float64Array(nodeCount);
      for (let i = 1; i < nodeCount; i++) {
        const above = parent[i];
        edges[i] = edges[above] + next[above];
        next[above] += sums[i];
      }
      return edges;
    });
  };
  const whole = [Float64Array.from(data.nodes.count), Float64Array.from(data.nodes.weight)];
  load(whole);
  // A comparison: own values of the profile before, and the totals of both sides.
  const earlier = data.before ? [Float64Array.from(data.before.count), Float64Array.from(data.before.weight)] : null;
  const sides = earlier && { before: sumUp(earlier), after: total };
  // By how much the profile before is scaled, by measure.
  const scales = sides && [0, 1].map((measure) => (data.before.scaled ? sides.after[measure][0] / (sides.before[measure][0] || 1) : 1));

  // ---- state --------------------------------------------------------------------------------
  const state = {
    measure: data.measure,
    icicle: data.icicle,
    zoom: 0,
    selected: -1,
    hover: -1,
    matches: null, // Uint8Array by name, or null without a search
    chosen: -1, // name picked in the table
    sort: earlier ? "total" : "own",
    table: true,
    isBefore: false, // widths are those of the profile before
  };
  if (total[1][0] === 0) state.measure = 0;

  // ---- text ---------------------------------------------------------------------------------
  const number = new Intl.NumberFormat("en-US");
  const share = (part, whole) => {
    if (!whole) return "0 %";
    const percent = (100 * part) / whole;
    return (percent >= 99.95 || percent === 0 ? percent.toFixed(0) : percent >= 0.095 ? percent.toFixed(1) : "<0.1") + " %";
  };
  const duration = (ns) => {
    for (const [unit, size] of [["h", 3.6e12], ["min", 6e10], ["s", 1e9], ["ms", 1e6], ["µs", 1e3]])
      if (ns >= size) return (ns / size).toPrecision(3).replace(/\.0+$/, "") + " " + unit;
    return ns + " ns";
  };
  const unitNs = { nanoseconds: 1, microseconds: 1e3 }[data.unit];
  const weightText = (value) => (unitNs ? duration(value * unitNs) : number.format(value) + " " + data.unit);
  const countText = (value) => number.format(value) + (value === 1 ? " sample" : " samples");
  const measureText = (value) => (state.measure === 0 ? countText : weightText)(value);
  const label = (node) => (node === 0 ? "all" : functions[nameOf[node]]);
  const moduleText = (name) => data.modules[moduleOf[name]];

  // ---- colours ------------------------------------------------------------------------------
  // [hue, spread of hue, saturation, lightness] by kind: native, kernel, jit, interpreted,
  // inlined, synthetic, label. Native with a namespace is yellow.
  const KINDS = [[10, 14, 74, 68], [30, 12, 82, 62], [112, 26, 46, 64], [212, 22, 60, 72], [176, 16, 44, 64], [220, 0, 4, 74], [228, 20, 26, 76]];
  const NAMESPACED = [46, 12, 78, 66];
  const dark = () => document.documentElement.dataset.theme === "dark";
  const hash = (text) => {
    let value = 0x811c9dc5;
    for (let i = 0; i < text.length; i++) value = Math.imul(value ^ text.charCodeAt(i), 0x01000193);
    return value >>> 0;
  };
  const colourOf = (name) => {
    const kind = kindOf[name];
    const [hue, spread, saturation, lightness] = kind === 0 && functions[name].includes("::") ? NAMESPACED : KINDS[kind];
    const mixed = hash(functions[name]);
    const shade = ((mixed >>> 8) & 255) / 255;
    const turn = (mixed & 255) / 255 - 0.5;
    // Time without any stack is darker than what merely has no name.
    const lost = kind === 5 && functions[name] === "[lost]" ? 16 : 0;
    const light = lightness - lost - (dark() ? 9 : 0) + 8 * (shade - 0.5);
    return `hsl(${(hue + turn * spread).toFixed(0)} ${saturation - (dark() ? 12 : 0)}% ${light.toFixed(0)}%)`;
  };
  // Red grew, blue shrank, the more the stronger; grey is what two counts differ by from chance alone.
  const changed = (rawBefore, after, countBefore, countAfter, measure) => {
    const before = rawBefore * scales[measure], scaled = countBefore * scales[0];
    const least = 2 * Math.sqrt(scaled * scales[0] + countAfter);
    if (before === after || Math.abs(countAfter - scaled) < least) return dark() ? "hsl(220 6% 58%)" : "hsl(220 8% 83%)";
    const strength = Math.min(1, Math.abs(after - before) / Math.max(before, after));
    const light = (dark() ? 62 : 82) - 26 * strength;
    return `hsl(${after > before ? 8 : 214} ${(45 + 40 * strength).toFixed(0)}% ${light.toFixed(0)}%)`;
  };
  const colourOfChange = (node) => {
    const of = (side, measure) => sides[side][measure][node];
    return changed(of("before", state.measure), of("after", state.measure), of("before", 0), of("after", 0), state.measure);
  };
  let colours = [];
  const dye = () => { colours = functions.map((_, name) => (name === 0 ? (dark() ? "#5a6572" : "#cfd5dc") : colourOf(name))); };

  // ---- drawing ------------------------------------------------------------------------------
  const canvas = el("canvas"), scroll = el("scroll"), context = canvas.getContext("2d");
  let width = 0, height = 0, letter = 7, queued = false;
  const contentHeight = () => (deepest + 1) * ROW + 8;
  const rowTop = (row) => (state.icicle ? row * ROW + 4 : Math.max(contentHeight(), height) - 4 - (row + 1) * ROW);
  const scale = () => width / (total[state.measure][state.zoom] || 1);
  const isAbove = (node) => node < state.zoom && end[node] > state.zoom;

  const resize = () => {
    const ratio = window.devicePixelRatio || 1;
    width = scroll.clientWidth;
    height = scroll.clientHeight;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = width + "px";
    canvas.style.height = height + "px";
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.font = FONT;
    letter = context.measureText("M".repeat(50)).width / 50;
    // The canvas itself takes the height of the view; the rest is for the scroll bar.
    el("spacer").style.height = Math.max(0, contentHeight() - height) + "px";
    later();
  };

  const bar = (node, x, barWidth, y) => {
    const name = nameOf[node];
    const searched = state.matches !== null || state.chosen >= 0;
    const hit = searched && node !== 0 && (state.chosen >= 0 ? name === state.chosen : state.matches[name] === 1);
    const dimmed = (searched && !hit) || isAbove(node);
    context.globalAlpha = dimmed ? 0.42 : 1;
    context.fillStyle = hit ? "#e05ad2" : sides ? colourOfChange(node) : colours[name];
    // A hairline between bars where there is room for one.
    context.fillRect(x, y, Math.max(barWidth - (barWidth > 3 ? 0.75 : 0), 0.5), ROW - 1);
    context.globalAlpha = 1;
    if (node === state.hover || node === state.selected) {
      context.strokeStyle = dimTextColour;
      context.lineWidth = node === state.selected ? 2 : 1;
      context.strokeRect(x + 0.5, y + 0.5, Math.max(barWidth - 1.75, 1), ROW - 2);
    }
    const letters = Math.floor((barWidth - 7) / letter);
    if (letters >= 2) {
      const text = label(node);
      const room = Math.min(letters, text.length);
      context.fillStyle = dimmed ? dimTextColour : textColour;
      context.fillText(text.length > letters ? text.slice(0, room - 1) + "…" : text, x + 4, y + ROW / 2);
    }
  };

  // Text on bars, and on bars that the background shines through.
  let textColour = "", dimTextColour = "";
  const draw = () => {
    queued = false;
    const style = getComputedStyle(document.documentElement);
    textColour = style.getPropertyValue("--bar-text").trim();
    dimTextColour = style.getPropertyValue("--text").trim();
    context.clearRect(0, 0, width, height);
    context.font = FONT;
    context.textBaseline = "middle";
    const offset = scroll.scrollTop, factor = scale();
    const edges = left[state.measure], sums = total[state.measure];
    const seen = (row) => { const y = rowTop(row) - offset; return y > -ROW && y < height ? y : null; };
    for (let node = state.zoom; node >= 0; node = parent[node]) {
      const y = seen(depth[node]);
      if (y !== null && node !== state.zoom) bar(node, 0, width, y);
    }
    const origin = edges[state.zoom];
    for (let node = state.zoom; node < end[state.zoom]; ) {
      const barWidth = sums[node] * factor;
      // Narrower than half a pixel: nothing above it can be wider.
      if (barWidth < 0.5) { node = end[node]; continue; }
      const y = seen(depth[node]);
      if (y !== null) bar(node, (edges[node] - origin) * factor, barWidth, y);
      else if (state.icicle && rowTop(depth[node]) - offset >= height) { node = end[node]; continue; }
      else if (!state.icicle && rowTop(depth[node]) - offset <= -ROW) { node = end[node]; continue; }
      node++;
    }
  };
  const later = () => { if (!queued) { queued = true; requestAnimationFrame(draw); } };

  const nodeAt = (x, y) => {
    const row = state.icicle ? Math.floor((y + scroll.scrollTop - 4) / ROW) : Math.floor((Math.max(contentHeight(), height) - 4 - y - scroll.scrollTop) / ROW);
    if (row < 0 || row > deepest) return -1;
    if (row < depth[state.zoom]) {
      let node = state.zoom;
      while (depth[node] > row) node = parent[node];
      return node;
    }
    const at = left[state.measure][state.zoom] + x / scale();
    let node = state.zoom;
    while (depth[node] < row) {
      let found = -1;
      for (let child = node + 1; child < end[node]; child = end[child]) {
        const edge = left[state.measure][child];
        if (at >= edge && at < edge + total[state.measure][child]) { found = child; break; }
      }
      if (found < 0) return -1;
      node = found;
    }
    return total[state.measure][node] * scale() < 0.5 ? -1 : node;
  };

  // ---- details ------------------------------------------------------------------------------
  const points = (part) => `${part < 0 ? "−" : "+"}${Math.abs(100 * part).toFixed(1)}`;
  const shareAt = (side, node) => sides[side][state.measure][node] / (sides[side][state.measure][0] || 1);
  const changeText = (node) => {
    const before = shareAt("before", node), after = shareAt("after", node);
    const word = before === 0 ? "new" : after === 0 ? "vanished" : points(after - before);
    return `${share(before, 1)} before, ${share(after, 1)} after: ${word}`;
  };
  const describe = (node) => {
    const sums = total[state.measure];
    const parts = [label(node), measureText(sums[node]), share(sums[node], sums[0])];
    if (node && moduleText(nameOf[node])) parts.splice(1, 0, moduleText(nameOf[node]));
    if (sides) parts.push(changeText(node));
    return parts.join("  ·  ");
  };
  const add = (parentElement, tag, text, className) => {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    parentElement.append(made);
    return made;
  };
  const tip = el("tip");
  const showTip = (node, x, y) => {
    if (node < 0) { tip.hidden = true; return; }
    tip.replaceChildren();
    add(tip, "b", label(node));
    if (node) {
      const module = moduleText(nameOf[node]);
      add(tip, "div", data.kinds[kindOf[nameOf[node]]] + (module ? " · " + module : ""), "module");
    }
    const sums = total[state.measure], rows = add(tip, "table");
    const row = (...cells) => { const line = add(rows, "tr"); for (const cell of cells) add(line, "td", cell); };
    row("total", countText(total[0][node]), total[1][0] ? weightText(total[1][node]) : "");
    row("own", countText(own[0][node]), total[1][0] ? weightText(own[1][node]) : "");
    row("of all", share(sums[node], sums[0]), "");
    if (sides) {
      const [before, after] = [shareAt("before", node), shareAt("after", node)];
      row("before", share(before, 1), countText(sides.before[0][node]));
      row("after", share(after, 1), countText(sides.after[0][node]));
      row("change", points(after - before), "");
    }
    if (state.zoom && !isAbove(node)) row("of zoom", share(sums[node], sums[state.zoom]), "");
    if (node) row("of caller", share(sums[node], sums[parent[node]]), "");
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(4, Math.min(x + 14, innerWidth - box.width - 6)) + "px";
    tip.style.top = (y + 18 + box.height > innerHeight ? Math.max(4, y - box.height - 10) : y + 18) + "px";
  };

  // ---- table --------------------------------------------------------------------------------
  const tableRows = () => {
    const sums = total[state.measure], selfs = own[state.measure];
    const ownBy = new Float64Array(functions.length), totalBy = new Float64Array(functions.length);
    const active = new Int32Array(functions.length), path = [];
    const selfBy = (values) => {
      const by = new Float64Array(functions.length);
      for (let node = state.zoom; node < end[state.zoom]; node++) by[nameOf[node]] += values[node];
      return by;
    };
    const change = sides && { before: earlier.map(selfBy), after: whole.map(selfBy) };
    for (let node = state.zoom; node < end[state.zoom]; node++) {
      while (path.length && end[path[path.length - 1]] <= node) active[nameOf[path.pop()]]--;
      const name = nameOf[node];
      ownBy[name] += selfs[node];
      if (active[name]++ === 0) totalBy[name] += sums[node]; // recursion counts once
      path.push(node);
    }
    const rows = [];
    for (let name = 1; name < functions.length; name++)
      if ((totalBy[name] > 0 || (change && change.before[0][name] > 0)) && kindOf[name] !== LABEL && (state.matches === null || state.matches[name])) {
        const row = { name, own: ownBy[name], total: totalBy[name] };
        if (change) {
          const at = (side) => change[side][state.measure][name];
          const part = (side) => at(side) / (sides[side][state.measure][state.zoom] || 1);
          row.before = part("before");
          row.after = part("after");
          row.change = row.after - row.before;
          row.colour = changed(at("before"), at("after"), change.before[0][name], change.after[0][name], state.measure);
        }
        rows.push(row);
      }
    const order = {
      own: (a, b) => b.own - a.own || b.total - a.total,
      total: (a, b) => (sides ? Math.abs(b.change) - Math.abs(a.change) : b.total - a.total) || b.own - a.own,
      name: (a, b) => (functions[a.name] < functions[b.name] ? -1 : 1),
    }[state.sort];
    return rows.sort((a, b) => order(a, b) || a.name - b.name);
  };
  const fillTable = () => {
    if (!state.table) return;
    const rows = tableRows(), body = el("rows"), whole = total[state.measure][state.zoom];
    body.replaceChildren();
    for (const row of rows.slice(0, TABLE_ROWS)) {
      const line = add(body, "tr", undefined, row.name === state.chosen ? "chosen" : "");
      add(line, "td", share(row.own, whole), "number").title = measureText(row.own);
      if (sides) add(line, "td", points(row.change), "number").title = `${share(row.before, 1)} before, ${share(row.after, 1)} after`;
      else add(line, "td", share(row.total, whole), "number").title = measureText(row.total);
      const cell = add(line, "td");
      add(cell, "span", undefined, "dot").style.background = row.colour || colours[row.name];
      cell.append(functions[row.name]);
      const module = moduleText(row.name);
      if (module) add(cell, "span", module, "module");
      cell.title = functions[row.name] + (module ? "\n" + module : "");
      line.tabIndex = 0;
      line.onclick = () => { state.chosen = state.chosen === row.name ? -1 : row.name; refresh(); };
      line.onkeydown = (event) => { if (event.key === "Enter") { event.stopPropagation(); line.onclick(); } };
    }
    const left = rows.length - TABLE_ROWS;
    el("more").textContent = left > 0 ? `${number.format(left)} more functions` : rows.length ? "" : "No function.";
    for (const button of document.querySelectorAll("[data-sort]"))
      button.dataset.sort === state.sort ? button.setAttribute("aria-sort", "descending") : button.removeAttribute("aria-sort");
  };

  // ---- search -------------------------------------------------------------------------------
  const search = (text) => {
    state.chosen = -1;
    if (!text) state.matches = null;
    else {
      let test;
      try { const pattern = new RegExp(text, "i"); test = (value) => pattern.test(value); }
      catch { const lower = text.toLowerCase(); test = (value) => value.toLowerCase().includes(lower); }
      state.matches = Uint8Array.from(functions, (value, name) => (name && (test(value) || test(moduleText(name))) ? 1 : 0));
    }
    refresh();
  };
  const matchedShare = () => {
    const sums = total[state.measure];
    const hit = (name) => name && (state.chosen >= 0 ? name === state.chosen : state.matches !== null && state.matches[name]);
    let matched = 0;
    for (let node = state.zoom; node < end[state.zoom]; ) {
      if (hit(nameOf[node])) { matched += sums[node]; node = end[node]; } else node++;
    }
    return share(matched, sums[state.zoom]);
  };

  // ---- what changes the view ----------------------------------------------------------------
  const pressed = (id, on) => el(id).setAttribute("aria-pressed", String(on));
  const refresh = () => {
    const searching = state.matches !== null || state.chosen >= 0;
    el("matched").textContent = searching ? matchedShare() : "";
    el("matched").title = searching ? "Share of the view in matching frames" : "";
    pressed("by-count", state.measure === 0);
    pressed("by-weight", state.measure === 1);
    pressed("icicle", state.icicle);
    pressed("side", state.isBefore);
    pressed("show-table", state.table);
    fillTable();
    crumbs();
    later();
  };
  const crumbs = () => {
    const bar = el("crumbs"), path = [];
    for (let node = state.zoom; node > 0; node = parent[node]) path.unshift(node);
    bar.replaceChildren();
    if (!path.length) return;
    // Deep paths show their ends.
    const shown = path.length > 7 ? [...path.slice(0, 2), -1, ...path.slice(-4)] : path;
    for (const node of [0, ...shown]) {
      if (bar.childElementCount) add(bar, "span", "›");
      if (node < 0) { add(bar, "span", "…"); continue; }
      const button = add(bar, "button", label(node));
      button.title = label(node);
      button.onclick = () => zoom(node);
    }
  };
  const zoom = (node) => {
    if (node < 0) return;
    state.zoom = node;
    state.selected = node;
    state.hover = -1;
    tip.hidden = true;
    tellSelected();
    refresh();
    resize(); // the path above may have come or gone
    reveal(node);
  };
  const reveal = (node) => {
    const top = rowTop(depth[node]);
    if (top < scroll.scrollTop) scroll.scrollTop = top - ROW;
    else if (top + ROW > scroll.scrollTop + height) scroll.scrollTop = top + 2 * ROW - height;
  };
  const tellSelected = () => { el("status").textContent = state.selected > 0 ? describe(state.selected) : ""; };
  const select = (node) => {
    if (node < 0) return;
    state.selected = node;
    tellSelected();
    reveal(node);
    later();
  };
  const reset = () => { el("search").value = ""; state.matches = null; state.chosen = -1; zoom(0); toRoot(); };
  const toRoot = () => { scroll.scrollTop = state.icicle ? 0 : scroll.scrollHeight; };
  const setIcicle = (on) => { state.icicle = on; refresh(); toRoot(); };
  const setMeasure = (measure) => {
    if (!total[measure][0]) return;
    state.measure = measure;
    refresh();
    if (heat) heat.measure();
  };
  const setSide = (isBefore) => {
    if (!sides) return;
    state.isBefore = isBefore;
    load(isBefore ? earlier : whole);
    zoom(0);
  };
  const setTable = (on) => { state.table = on; el("table").hidden = !on; refresh(); resize(); };
  const setTheme = (theme) => {
    document.documentElement.dataset.theme = theme;
    dye();
    legend();
    refresh();
    if (heat) heat.draw();
  };
  const legend = () => {
    const used = new Set(kindOf.slice(1)), line = el("legend");
    line.replaceChildren();
    if (sides) {
      for (const [text, before, after] of [["grew", 100, 400], ["shrank", 400, 100], ["within chance", 100, 100]]) {
        const raw = before / (scales[0] || 1);
        add(line, "span", undefined, "dot").style.background = changed(raw, after, raw, after, 0);
        line.append(text);
      }
      return;
    }
    KINDS.forEach(([hue, , saturation, lightness], kind) => {
      if (!used.has(kind)) return;
      add(line, "span", undefined, "dot").style.background = `hsl(${hue} ${saturation}% ${lightness - (dark() ? 9 : 0)}%)`;
      line.append(data.kinds[kind]);
    });
  };
  const neighbour = (node, step) => {
    const above = parent[node];
    if (above < 0) return node;
    let before = -1;
    for (let child = above + 1; child < end[above]; child = end[child]) {
      if (child === node && step < 0) return before < 0 ? node : before;
      if (before === node && step > 0) return child;
      before = child;
    }
    return node;
  };
  const widestChild = (node) => {
    let best = -1;
    for (let child = node + 1; child < end[node]; child = end[child])
      if (best < 0 || total[state.measure][child] > total[state.measure][best]) best = child;
    return best < 0 ? node : best;
  };

  // ---- events -------------------------------------------------------------------------------
  canvas.addEventListener("mousemove", (event) => {
    const box = canvas.getBoundingClientRect();
    const node = nodeAt(event.clientX - box.left, event.clientY - box.top);
    if (node !== state.hover) {
      state.hover = node;
      if (node < 0) tellSelected();
      else el("status").textContent = describe(node);
      canvas.style.cursor = node < 0 ? "default" : "pointer";
      later();
    }
    showTip(node, event.clientX, event.clientY);
  });
  canvas.addEventListener("mouseleave", () => { state.hover = -1; tip.hidden = true; tellSelected(); later(); });
  // Where it was clicked, not what hovers: a touch screen has no hover.
  canvas.addEventListener("click", (event) => {
    const box = canvas.getBoundingClientRect();
    zoom(nodeAt(event.clientX - box.left, event.clientY - box.top));
  });
  scroll.addEventListener("scroll", () => { tip.hidden = true; later(); });
  el("search").addEventListener("input", (event) => search(event.target.value));
  el("by-count").onclick = () => setMeasure(0);
  el("by-weight").onclick = () => setMeasure(1);
  el("side").onclick = () => setSide(!state.isBefore);
  el("icicle").onclick = () => setIcicle(!state.icicle);
  el("show-table").onclick = () => setTable(!state.table);
  el("theme").onclick = () => setTheme(dark() ? "light" : "dark");
  el("reset").onclick = reset;
  el("help-button").onclick = () => el("help").showModal();
  for (const button of document.querySelectorAll("[data-sort]"))
    button.onclick = () => { state.sort = button.dataset.sort; fillTable(); };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || el("help").open) return;
    if (event.target === el("search")) {
      if (event.key === "Escape") { event.target.value = ""; search(""); event.target.blur(); }
      return;
    }
    const at = state.selected < 0 ? state.zoom : state.selected;
    const away = state.icicle ? "ArrowDown" : "ArrowUp", back = state.icicle ? "ArrowUp" : "ArrowDown";
    const keys = {
      "/": () => el("search").focus(),
      Escape: () => (state.matches !== null || state.chosen >= 0 ? (el("search").value = "", search("")) : zoom(0)),
      "0": reset,
      m: () => setMeasure(1 - state.measure),
      i: () => setIcicle(!state.icicle),
      b: () => setSide(!state.isBefore),
      t: () => setTable(!state.table),
      d: () => setTheme(dark() ? "light" : "dark"),
      "?": () => el("help").showModal(),
      Backspace: () => zoom(Math.max(0, parent[state.zoom])),
      Enter: () => zoom(at),
      [away]: () => select(widestChild(at)),
      [back]: () => select(Math.max(0, parent[at])),
      ArrowLeft: () => select(neighbour(at, -1)),
      ArrowRight: () => select(neighbour(at, 1)),
    };
    const onButton = event.target instanceof HTMLButtonElement && event.key === "Enter";
    if (keys[event.key] && !onButton) { event.preventDefault(); keys[event.key](); }
  });
  new ResizeObserver(resize).observe(scroll);

  // ---- times --------------------------------------------------------------------------------
  // The flame graph of a range is made of the samples of its cells; `null` is the whole profile.
  const pick = (range) => {
    if (!range) load(whole);
    else {
      const { at, node, count, weight } = data.times, part = whole.map((values) => new Float64Array(values.length));
      for (let i = 0; i < at.length; i++) {
        const cell = range.cellOf[i];
        if (cell < range.from || cell > range.to) continue;
        part[0][node[i]] += count[i];
        part[1][node[i]] += weight[i];
      }
      load(part);
    }
    zoom(0);
  };
  const heat = data.times ? heatMap(data.times, { el, number, dark, measure: () => state.measure, text: measureText, countText, pick }) : null;
  if (heat) new ResizeObserver(() => heat.draw()).observe(el("times-scroll"));

  // ---- begin --------------------------------------------------------------------------------
  el("title").textContent = data.title;
  el("quality").textContent = data.quality;
  el("size").textContent = `${number.format(nodeCount - 1)} bars, ${number.format(functions.length - 1)} functions`;
  el("by-weight").textContent = data.weighs;
  el("by-weight").disabled = total[1][0] === 0;
  for (const text of document.querySelectorAll("[data-times]")) text.hidden = !heat;
  for (const text of document.querySelectorAll("[data-sides]")) text.hidden = !sides;
  if (sides) document.querySelector("[data-sort=total]").textContent = "Change";
  setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  resize();
  toRoot();
  if (total[0][0] === 0) el("status").textContent = "No samples in this profile.";
})();
