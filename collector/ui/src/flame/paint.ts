// Draws the visible part of a layout. The work is bounded by pixels, not by nodes: what is too
// narrow to be read is drawn as one grey run, and the nodes behind a pixel of it are leapt over.

import { KIND } from '../query/outcome';
import { clipped } from '../text/printable';
import type { Layout } from './layout';
import { firstEndingAfter, levelCount } from './layout';
import type { Found } from './search';

/** Nodes narrower than this are part of a run. Unit: CSS pixels. */
const RUN_BELOW = 3;

/** Nodes narrower than this have no text. Unit: CSS pixels. */
const TEXT_FROM = 22;

const TEXT_LEFT = 4;
const FONT = '11.5px system-ui, "Segoe UI", Roboto, sans-serif';

export interface Palette {
  text: string;
  page: string;
  match: string;
  matchText: string;
  line: string;
  focus: string;
  hatch: string;
  hatchGround: string;
  /** What is too narrow to be told apart. */
  run: string;
}

export const PALETTES: Record<'dark' | 'light', Palette> = {
  light: {
    text: '#20242b',
    page: '#ffffff',
    match: '#b0399f',
    matchText: '#ffffff',
    line: '#10151c',
    focus: '#1556c0',
    hatch: '#a9b0ba',
    hatchGround: '#dfe2e7',
    run: '#d5dae1',
  },
  dark: {
    text: '#14171b',
    page: '#171c22',
    match: '#d765c6',
    matchText: '#1c0719',
    line: '#ffffff',
    focus: '#8ab6ff',
    hatch: '#7d8692',
    hatchGround: '#aeb4bd',
    run: '#4a535e',
  },
};

/** What is drawn, and from where it is looked at. Lengths in CSS pixels. */
export interface Scene {
  layout: Layout;
  palette: Palette;
  /** By layout node. */
  colour: (node: number) => string;
  /** Drawn hatched: not code, or gone. */
  hatched: (node: number) => boolean;
  found: Found | undefined;
  /** Visible part of the width, in the layout's unit. */
  left: number;
  width: number;
  scroll: number;
  viewWidth: number;
  viewHeight: number;
  rowHeight: number;
  /** Root at the bottom. */
  inverted: boolean;
  /** The node that fills the width; what is above it is pale. */
  zoomed: number;
  hovered: number | undefined;
  selected: number | undefined;
  ratio: number;
}

/** Height of all levels. */
export function contentHeight(layout: Layout, rowHeight: number): number {
  return levelCount(layout) * rowHeight;
}

/** Top edge of a level in the view. */
export function topOf(scene: Scene, level: number): number {
  if (!scene.inverted) return level * scene.rowHeight - scene.scroll;
  const height = Math.max(contentHeight(scene.layout, scene.rowHeight), scene.viewHeight);
  return height - (level + 1) * scene.rowHeight - scene.scroll;
}

/** The level at a height of the view. */
export function levelAt(scene: Scene, y: number): number {
  if (!scene.inverted) return Math.floor((y + scene.scroll) / scene.rowHeight);
  const height = Math.max(contentHeight(scene.layout, scene.rowHeight), scene.viewHeight);
  return Math.floor((height - y - scene.scroll - 0.001) / scene.rowHeight);
}

/** Texts cut to fit, by widths measured once. */
class Fitter {
  private readonly ascii = new Float32Array(128);
  private readonly dots: number;

  constructor(private readonly context: CanvasRenderingContext2D) {
    for (let code = 32; code < 127; code++) this.ascii[code] = context.measureText(String.fromCharCode(code)).width;
    this.dots = context.measureText('…').width;
  }

  fit(text: string, room: number): string {
    let width = 0;
    let cut = 0;
    for (let at = 0; at < text.length; at++) {
      const code = text.charCodeAt(at);
      if (code >= 127) return this.measured(text, room);
      width += this.ascii[code];
      if (width + this.dots <= room) cut = at + 1;
      if (width > room) return cut > 1 ? `${text.slice(0, cut)}…` : '';
    }
    return text;
  }

  // Searches by halves, over complete characters.
  private measured(text: string, room: number): string {
    if (this.context.measureText(text).width <= room) return text;
    const letters = [...text];
    let [low, high] = [0, letters.length];
    while (low < high) {
      const middle = (low + high + 1) >>> 1;
      if (this.context.measureText(`${letters.slice(0, middle).join('')}…`).width <= room) low = middle;
      else high = middle - 1;
    }
    return low > 1 ? `${letters.slice(0, low).join('')}…` : '';
  }
}

/** Draws scenes on one canvas. */
export class Painter {
  private fitter: Fitter | undefined;
  private labels = new WeakMap<object, string[]>();
  private hatch = new Map<string, CanvasPattern | string>();

  constructor(private readonly context: CanvasRenderingContext2D) {}

  paint(scene: Scene): void {
    const { context } = this;
    context.setTransform(scene.ratio, 0, 0, scene.ratio, 0, 0);
    context.globalAlpha = 1;
    context.fillStyle = scene.palette.page;
    context.fillRect(0, 0, scene.viewWidth, scene.viewHeight);
    context.font = FONT;
    context.textBaseline = 'middle';
    context.direction = 'ltr';
    this.fitter ??= new Fitter(context);
    if (!(scene.layout.whole > 0)) return;
    const levels = levelCount(scene.layout);
    for (let level = 0; level < levels; level++) {
      const top = topOf(scene, level);
      if (top < scene.viewHeight && top + scene.rowHeight > 0) this.level(scene, level, top);
    }
    this.outline(scene, scene.selected, 2, scene.palette.focus);
    this.outline(scene, scene.hovered, 1, scene.palette.line);
  }

  private level(scene: Scene, level: number, top: number): void {
    const { layout, found } = scene;
    const scale = scene.viewWidth / scene.width;
    const end = layout.levels[level + 1];
    const right = scene.left + scene.width;
    let runFrom = -1;
    let runTo = -1;
    let runMatches = false;
    const flush = () => {
      if (runFrom >= 0) this.run(scene, runFrom, runTo, top, runMatches);
      runFrom = -1;
    };
    let at = firstEndingAfter(layout, layout.levels[level], end, scene.left);
    while (at < end && layout.x[at] < right) {
      const from = (layout.x[at] - scene.left) * scale;
      const to = from + layout.width[at] * scale;
      if (to - from >= RUN_BELOW) {
        flush();
        this.node(scene, at, from, to, top);
        at++;
        continue;
      }
      // All that ends within this device pixel is one step of the run.
      const edge = Math.max(to, (Math.floor(from * scene.ratio) + 1) / scene.ratio);
      const next =
        to - from >= 1 ? at + 1 : Math.max(at + 1, firstEndingAfter(layout, at + 1, end, scene.left + edge / scale));
      const matches = found !== undefined && found.before[next] > found.before[at];
      if (runFrom >= 0 && (from > runTo + 1 / scene.ratio || matches !== runMatches)) flush();
      if (runFrom < 0) {
        runFrom = Math.floor(from * scene.ratio) / scene.ratio;
        runMatches = matches;
      }
      runTo = edge;
      at = next;
    }
    flush();
  }

  private run(scene: Scene, from: number, to: number, top: number, matches: boolean): void {
    const { context } = this;
    context.globalAlpha = !matches && scene.found ? 0.45 : 1;
    context.fillStyle = matches ? scene.palette.match : scene.palette.run;
    context.fillRect(from, top, Math.max(to - from, 1 / scene.ratio), scene.rowHeight - 1);
    context.globalAlpha = 1;
  }

  private node(scene: Scene, node: number, from: number, to: number, top: number): void {
    const { context } = this;
    const { ratio, rowHeight, palette, layout } = scene;
    const left = Math.max(-1, Math.round(from * ratio) / ratio);
    const right = Math.min(scene.viewWidth + 1, Math.round(to * ratio) / ratio);
    const gap = right - left > 3 ? 1 : 0;
    const width = Math.max(right - left - gap, 1 / ratio);
    const matches = scene.found?.mask[node] === 1;
    const pale = layout.depth[node] < layout.depth[scene.zoomed] || (scene.found !== undefined && !matches);
    context.globalAlpha = pale ? 0.42 : 1;
    const hatched = !matches && scene.hatched(node);
    context.fillStyle = matches ? palette.match : scene.colour(node);
    if (hatched)
      context.fillStyle = this.hatching(
        scene,
        scene.layout.tree.names.kind[layout.name[node]] === KIND.synthetic ? undefined : scene.colour(node),
      );
    context.fillRect(left, top, width, rowHeight - 1);
    context.globalAlpha = 1;
    const textFrom = Math.max(left, 0) + TEXT_LEFT;
    const room = Math.min(right, scene.viewWidth) - gap - textFrom - 2;
    if (room < TEXT_FROM - TEXT_LEFT) return;
    const text = this.fitter?.fit(this.label(scene, layout.name[node]), room) ?? '';
    if (text === '') return;
    // On pale frames of the dark theme the ground shows through.
    context.fillStyle = matches ? palette.matchText : pale && palette.page !== '#ffffff' ? '#d5dae1' : palette.text;
    context.fillText(text, textFrom, top + (rowHeight - 1) / 2 + 0.5);
  }

  private outline(scene: Scene, node: number | undefined, thick: number, colour: string): void {
    if (node === undefined || node >= scene.layout.name.length) return;
    const { layout } = scene;
    const scale = scene.viewWidth / scene.width;
    const from = Math.max(0, (layout.x[node] - scene.left) * scale);
    const to = Math.min(scene.viewWidth, (layout.x[node] + layout.width[node] - scene.left) * scale);
    if (to <= from) return;
    this.context.strokeStyle = colour;
    this.context.lineWidth = thick;
    const top = topOf(scene, layout.depth[node]);
    this.context.strokeRect(
      from + thick / 2,
      top + thick / 2,
      Math.max(1, to - from - thick - 1),
      scene.rowHeight - 1 - thick,
    );
  }

  private label(scene: Scene, name: number): string {
    const { names } = scene.layout.tree;
    let labels = this.labels.get(names);
    if (!labels) {
      labels = [];
      this.labels.set(names, labels);
    }
    labels[name] ??= clipped(names.text[name]);
    return labels[name];
  }

  private hatching(scene: Scene, ground = scene.palette.hatchGround): CanvasPattern | string {
    const key = `${ground} ${scene.palette.hatch}`;
    const known = this.hatch.get(key);
    if (known) return known;
    const tile = document.createElement('canvas');
    tile.width = tile.height = 6;
    const draw = tile.getContext('2d');
    if (!draw) return ground;
    draw.fillStyle = ground;
    draw.fillRect(0, 0, 6, 6);
    draw.strokeStyle = scene.palette.hatch;
    draw.lineWidth = 1;
    draw.beginPath();
    for (const shift of [-6, 0, 6]) {
      draw.moveTo(shift, 6);
      draw.lineTo(shift + 6, 0);
    }
    draw.stroke();
    const made = this.context.createPattern(tile, 'repeat') ?? ground;
    if (this.hatch.size > 64) this.hatch.clear();
    this.hatch.set(key, made);
    return made;
  }
}
