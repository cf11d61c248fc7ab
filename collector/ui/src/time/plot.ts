// The drawing of a chart with uPlot: stacked areas, gaps shaded, a brush that chooses a range.

import uPlot from 'uplot';
import { compact, inUtc, written } from '../text/format';
import type { Range } from './range';
import type { Band, Chart, Gap, Ghost, Line } from './series';
import { bandsOf, colourOf, stacked } from './series';

export interface PlotLook {
  dark: boolean;
  /** Name of the vertical axis. */
  axis: string;
  /** Times on the axis are in UTC. */
  utc: boolean;
}

export interface PlotEvents {
  brush(range: Range): void;
  /** Step under the pointer, and where it is in the plot; undefined: it left. */
  point(step: number | undefined, x: number): void;
  /** Where the plot lies in its box, whenever it is drawn. Unit: CSS pixels. */
  placed?(left: number, width: number): void;
}

/** A brush narrower than this is a click. Unit: CSS pixels. */
const BRUSH_FROM = 5;

/** One drawn chart. */
export class Plot {
  private plot: uPlot | undefined;
  private gaps: readonly Gap[] = [];
  private bands: readonly Band[] = [];
  private ghost: Ghost | undefined;
  private times: readonly number[] = [];
  private structure = '';
  private readonly observer: ResizeObserver;

  constructor(
    private readonly box: HTMLElement,
    private readonly events: PlotEvents,
  ) {
    this.observer = new ResizeObserver(() => this.plot?.setSize(this.size()));
    this.observer.observe(box);
  }

  destroy(): void {
    this.observer.disconnect();
    this.plot?.destroy();
  }

  /** Draws; `lines` are the visible ones of the chart, `ghost` is the baseline behind them. */
  show(chart: Chart, lines: readonly Line[], gaps: readonly Gap[], ghost: Ghost | undefined, look: PlotLook): void {
    [this.gaps, this.ghost, this.bands] = [gaps, ghost, bandsOf(chart)];
    // The largest sum is drawn first and the others over it, so that each area is what a line adds.
    const edges = stacked(lines, chart.times.length - 1).reverse();
    const known = (value: number | undefined) => (value === undefined || Number.isNaN(value) ? null : value);
    this.times = chart.times;
    const xs = [...chart.times];
    const ys = edges.map((edge) => [...Array.from(edge, known), known(edge.at(-1))]);
    // Over the areas, so that it is seen.
    if (ghost) ys.push([...Array.from(ghost.rates, known), known(ghost.rates.at(-1))]);
    // A step is drawn up to the point after it: one that nothing follows gets a point of its own.
    for (let at = chart.states.length - 1; at > 0 && edges.length > 0; at--) {
      if (ys[0][at] !== null || ys[0][at - 1] === null) continue;
      xs.splice(at, 0, chart.times[at] - 1e-3);
      for (const edge of ys) edge.splice(at, 0, edge[at - 1] ?? null);
    }
    const data: uPlot.AlignedData = [xs, ...ys];
    const structure = JSON.stringify([lines.map(colourOf), look, ghost !== undefined]);
    if (this.plot && structure === this.structure) {
      this.plot.setData(data);
      return;
    }
    this.structure = structure;
    this.plot?.destroy();
    this.plot = new uPlot(this.options([...lines].reverse(), look, ghost !== undefined), data, this.box);
  }

  /** Shows where keys are, as if the pointer were there, and the steps that they mark. */
  showKeys(cursor: number | undefined, marked: readonly [number, number] | undefined): void {
    const { plot, times } = this;
    if (!plot) return;
    const x = (step: number) => plot.valToPos(times[step], 'x');
    plot.setCursor({ left: cursor === undefined ? -10 : (x(cursor) + x(cursor + 1)) / 2, top: 0 });
    const left = marked ? x(marked[0]) : 0;
    const width = marked ? x(marked[1]) - left : 0;
    plot.setSelect({ left, top: 0, width, height: plot.over.clientHeight }, false);
  }

  private size(): { width: number; height: number } {
    return { width: Math.max(50, this.box.clientWidth), height: Math.max(80, this.box.clientHeight) };
  }

  private options(lines: readonly Line[], look: PlotLook, hasGhost: boolean): uPlot.Options {
    const axis = {
      stroke: look.dark ? '#9aa7b5' : '#5b6673',
      grid: { stroke: look.dark ? '#2a323b' : '#e6e9ed', width: 1 },
      ticks: { show: false },
      font: '11px system-ui, sans-serif',
    };
    const stepped = uPlot.paths.stepped?.({ align: 1 });
    return {
      ...this.size(),
      // Ticks stand at full hours of the zone that is shown.
      tzDate: (seconds) => (inUtc() ? uPlot.tzDate(new Date(seconds * 1000), 'Etc/UTC') : new Date(seconds * 1000)),
      // On the right there is room for half of a time with seconds.
      padding: [14, 28, 0, 0],
      legend: { show: false },
      scales: {
        x: { time: true, range: (_, min, max) => [min, max] },
        y: { range: (_, __, max) => [0, max > 0 ? max * 1.06 : 1] },
      },
      axes: [
        { ...axis, size: 26, gap: 4, values: timeLabels },
        {
          ...axis,
          size: 46,
          gap: 4,
          values: (_, ticks) =>
            ticks.map((tick) =>
              tick >= 1e6 ? compact(tick) : tick >= 1000 ? tick.toLocaleString('en') : String(+tick.toPrecision(6)),
            ),
        },
      ],
      series: [
        {},
        ...lines.map((line) => ({
          stroke: colourOf(line),
          fill: mixed(colourOf(line), look.dark),
          width: 1,
          paths: stepped,
          points: { show: false },
        })),
        ...(hasGhost ? [{ stroke: ghostColour(look.dark), width: 1.5, paths: stepped, points: { show: false } }] : []),
      ],
      cursor: {
        y: false,
        points: { show: false },
        drag: { x: true, y: false, setScale: false },
        bind: { dblclick: () => null },
      },
      hooks: {
        draw: [
          (plot) => this.shade(plot, look),
          ({ bbox }) => this.events.placed?.(bbox.left / devicePixelRatio, bbox.width / devicePixelRatio),
        ],
        setSelect: [(plot) => this.select(plot)],
        setCursor: [(plot) => this.point(plot)],
      },
    };
  }

  private select(plot: uPlot): void {
    const { left, width } = plot.select;
    if (width >= BRUSH_FROM) {
      const ms = (position: number) => Math.round(plot.posToVal(position, 'x') * 1000);
      const range = { from: ms(left), to: ms(left + width) };
      if (range.to > range.from) this.events.brush(range);
    }
    if (width > 0) plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  }

  private point(plot: uPlot): void {
    const { left } = plot.cursor;
    if (left === undefined || left === null || left < 0) {
      this.events.point(undefined, 0);
      return;
    }
    const { times } = this;
    const at = plot.posToVal(left, 'x');
    let [low, high] = [0, times.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >>> 1;
      if (times[middle] <= at) low = middle;
      else high = middle - 1;
    }
    this.events.point(Math.min(low, times.length - 2), left + plot.bbox.left / devicePixelRatio);
  }

  private shade(plot: uPlot, look: PlotLook): void {
    const { ctx, bbox } = plot;
    const x = (ms: number) =>
      Math.min(bbox.left + bbox.width, Math.max(bbox.left, plot.valToPos(ms / 1000, 'x', true)));
    const ratio = devicePixelRatio || 1;
    ctx.save();
    for (const band of this.bands) {
      const [from, to] = [x(band.fromMs), x(band.toMs)];
      if (to <= from) continue;
      if (band.state === 'none') {
        ctx.fillStyle = look.dark ? 'rgba(148,161,176,0.16)' : 'rgba(91,102,115,0.13)';
        ctx.fillRect(from, bbox.top, to - from, bbox.height);
      } else hatch(ctx, from, bbox.top, to - from, bbox.height, ratio, look.dark);
      label(ctx, band.state === 'none' ? 'no data' : 'samples lost', from, bbox.top, to - from, ratio, look.dark);
    }
    for (const gap of this.gaps) {
      const [from, to] = [x(gap.fromMs), x(gap.toMs)];
      const width = Math.max(to - from, 1.5 * ratio);
      ctx.fillStyle = look.dark ? 'rgba(240,180,60,0.13)' : 'rgba(214,140,10,0.13)';
      ctx.fillRect(from, bbox.top, width, bbox.height);
      ctx.fillStyle = look.dark ? '#e0a93f' : '#c98a12';
      ctx.fillRect(from, bbox.top, width, 3 * ratio);
    }
    // Where the baseline has no data its line ends: a dashed one at the foot says that it is not 0.
    ctx.strokeStyle = ghostColour(look.dark);
    ctx.lineWidth = 2 * ratio;
    ctx.setLineDash([3 * ratio, 4 * ratio]);
    for (const band of this.ghost?.missing ?? []) {
      const [from, to, y] = [x(band.fromMs), x(band.toMs), bbox.top + bbox.height - 2 * ratio];
      ctx.beginPath();
      ctx.moveTo(from, y);
      ctx.lineTo(to, y);
      ctx.stroke();
      label(ctx, 'no baseline', from, bbox.top + bbox.height - 26 * ratio, to - from, ratio, look.dark);
    }
    ctx.restore();
  }
}

/** The colour of a baseline: grey, and to be told from that of the rest. */
function ghostColour(dark: boolean): string {
  return dark ? '#c3ccd6' : '#4a5561';
}

/** Lines over a time whose rates are not to be believed. */
function hatch(
  ctx: CanvasRenderingContext2D,
  left: number,
  top: number,
  width: number,
  height: number,
  ratio: number,
  dark: boolean,
): void {
  ctx.save();
  ctx.beginPath();
  ctx.rect(left, top, width, height);
  ctx.clip();
  ctx.fillStyle = dark ? 'rgba(255,120,110,0.14)' : 'rgba(190,40,30,0.10)';
  ctx.fillRect(left, top, width, height);
  ctx.strokeStyle = dark ? 'rgba(255,143,134,0.75)' : 'rgba(179,38,30,0.6)';
  ctx.lineWidth = ratio;
  ctx.beginPath();
  // From a place of the plot, not of the band, so that neighbours have one pattern.
  const gap = 7 * ratio;
  for (let at = Math.floor((left - height) / gap) * gap; at < left + width; at += gap) {
    ctx.moveTo(at, top + height);
    ctx.lineTo(at + height, top);
  }
  ctx.stroke();
  ctx.restore();
}

/** Says what a band is, where there is room. */
function label(
  ctx: CanvasRenderingContext2D,
  text: string,
  left: number,
  top: number,
  width: number,
  ratio: number,
  dark: boolean,
): void {
  ctx.font = `${11 * ratio}px system-ui, sans-serif`;
  const room = ctx.measureText(text).width + 10 * ratio;
  if (width < room + 4 * ratio) return;
  const [at, height] = [left + (width - room) / 2, 16 * ratio];
  ctx.fillStyle = dark ? '#171c22' : '#ffffff';
  ctx.fillRect(at, top + 6 * ratio, room, height);
  ctx.fillStyle = dark ? '#dfe5eb' : '#1c242d';
  ctx.textAlign = 'left';
  ctx.textBaseline = 'middle';
  ctx.fillText(text, at + 5 * ratio, top + 6 * ratio + height / 2);
}

/** Ticks as times of the zone that is shown; a midnight is its date. */
function timeLabels(_: uPlot, ticks: number[], __: number, ___: number, step: number): string[] {
  return ticks.map((tick) => {
    const at = written(tick * 1000);
    if (at.endsWith('00:00:00') || step >= 86_400) return at.slice(5, 10);
    return at.slice(11, step < 60 ? 19 : 16);
  });
}

/** The colour, lighter: areas are large. */
function mixed(colour: string, dark: boolean): string {
  const ground = dark ? 23 : 255;
  const parts = [1, 3, 5].map((at) => Math.round(parseInt(colour.slice(at, at + 2), 16) * 0.72 + ground * 0.28));
  return `rgb(${parts.join(',')})`;
}
