// The drawing of a chart with uPlot: stacked areas, gaps shaded, a brush that chooses a range.

import uPlot from 'uplot';
import type { Range } from './range';
import type { Band, Chart, Gap, Line } from './series';
import { bandsOf, colourOf, stacked } from './series';

export interface PlotLook {
  dark: boolean;
  /** Name of the vertical axis. */
  axis: string;
}

/** A range marked on the chart. */
export interface Mark extends Range {
  tone: 'before' | 'after';
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
  private marks: readonly Mark[] = [];
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

  /** Draws; `lines` are the visible ones of the chart. */
  show(chart: Chart, lines: readonly Line[], gaps: readonly Gap[], marks: readonly Mark[], look: PlotLook): void {
    [this.gaps, this.marks, this.bands] = [gaps, marks, bandsOf(chart)];
    // The largest sum is drawn first and the others over it, so that each area is what a line adds.
    const edges = stacked(lines, chart.times.length - 1).reverse();
    const known = (value: number | undefined) => (value === undefined || Number.isNaN(value) ? null : value);
    this.times = chart.times;
    const xs = [...chart.times];
    const ys = edges.map((edge) => [...Array.from(edge, known), known(edge.at(-1))]);
    // A step is drawn up to the point after it: one that nothing follows gets a point of its own.
    for (let at = chart.states.length - 1; at > 0 && ys.length > 0; at--) {
      if (ys[0][at] !== null || ys[0][at - 1] === null) continue;
      xs.splice(at, 0, chart.times[at] - 1e-3);
      for (const edge of ys) edge.splice(at, 0, edge[at - 1]);
    }
    const data: uPlot.AlignedData = [xs, ...ys];
    const structure = JSON.stringify([lines.map(colourOf), look]);
    if (this.plot && structure === this.structure) {
      this.plot.setData(data);
      return;
    }
    this.structure = structure;
    this.plot?.destroy();
    this.plot = new uPlot(this.options([...lines].reverse(), look), data, this.box);
  }

  private size(): { width: number; height: number } {
    return { width: Math.max(50, this.box.clientWidth), height: Math.max(80, this.box.clientHeight) };
  }

  private options(lines: readonly Line[], look: PlotLook): uPlot.Options {
    const axis = {
      stroke: look.dark ? '#9aa7b5' : '#5b6673',
      grid: { stroke: look.dark ? '#2a323b' : '#e6e9ed', width: 1 },
      ticks: { show: false },
      font: '11px system-ui, sans-serif',
    };
    const stepped = uPlot.paths.stepped?.({ align: 1 });
    return {
      ...this.size(),
      padding: [14, 20, 0, 0],
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
            ticks.map((tick) => (tick >= 1000 ? tick.toLocaleString('en') : String(+tick.toPrecision(6)))),
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
    for (const mark of this.marks) {
      const [from, to] = [x(mark.from), x(mark.to)];
      const tone = mark.tone === 'before' ? '63,127,214' : '208,74,60';
      ctx.fillStyle = `rgba(${tone},0.14)`;
      ctx.fillRect(from, bbox.top, Math.max(to - from, ratio), bbox.height);
      ctx.fillStyle = `rgb(${tone})`;
      ctx.fillRect(from, bbox.top + bbox.height - 3 * ratio, Math.max(to - from, ratio), 3 * ratio);
    }
    ctx.restore();
  }
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

/** Ticks as local times; a midnight is its date. */
function timeLabels(_: uPlot, ticks: number[], __: number, ___: number, step: number): string[] {
  const two = (value: number) => String(value).padStart(2, '0');
  return ticks.map((tick) => {
    const at = new Date(tick * 1000);
    const midnight = at.getHours() === 0 && at.getMinutes() === 0 && at.getSeconds() === 0;
    if (midnight || step >= 86_400) return `${two(at.getMonth() + 1)}-${two(at.getDate())}`;
    const time = `${two(at.getHours())}:${two(at.getMinutes())}`;
    return step < 60 ? `${time}:${two(at.getSeconds())}` : time;
  });
}

/** The colour, lighter: areas are large. */
function mixed(colour: string, dark: boolean): string {
  const ground = dark ? 23 : 255;
  const parts = [1, 3, 5].map((at) => Math.round(parseInt(colour.slice(at, at + 2), 16) * 0.72 + ground * 0.28));
  return `rgb(${parts.join(',')})`;
}
