// All of a graph in a strip, and where in it one looks. Its frames are drawn once for each layout;
// what moves is the rectangle on them.

import { firstEndingAfter, levelCount } from './layout';
import { contentHeight } from './paint';
import type { Scene } from './paint';

/** Height of the strip. Unit: CSS pixels. */
export const MINIMAP_HEIGHT = 44;

/** Largest height of a level. Unit: CSS pixels. */
const LEVEL_MAX = 4;

export class Minimap {
  private readonly context: CanvasRenderingContext2D | null;
  private readonly frames = document.createElement('canvas');
  private drawn: { layout: object; colour: unknown; width: number; inverted: boolean } | undefined;

  constructor(private readonly canvas: HTMLCanvasElement) {
    this.context = canvas.getContext('2d');
  }

  /** Shows where `scene` looks. */
  show(scene: Scene): void {
    const { canvas, context, frames } = this;
    const width = Math.max(1, canvas.clientWidth);
    const same =
      this.drawn?.layout === scene.layout &&
      this.drawn.colour === scene.colour &&
      this.drawn.width === width &&
      this.drawn.inverted === scene.inverted;
    if (!context) return;
    if (!same) {
      [canvas.width, canvas.height] = [width, MINIMAP_HEIGHT];
      [frames.width, frames.height] = [width, MINIMAP_HEIGHT];
      this.draw(scene, width);
      this.drawn = { layout: scene.layout, colour: scene.colour, width, inverted: scene.inverted };
    }
    context.globalAlpha = 1;
    context.drawImage(frames, 0, 0);
    const { x, y, wide, high } = seen(scene, width);
    context.globalAlpha = 0.62;
    context.fillStyle = scene.palette.page;
    context.fillRect(0, 0, x, MINIMAP_HEIGHT);
    context.fillRect(x + wide, 0, width - x - wide, MINIMAP_HEIGHT);
    context.fillRect(x, 0, wide, y);
    context.fillRect(x, y + high, wide, MINIMAP_HEIGHT - y - high);
    context.globalAlpha = 1;
    context.strokeStyle = scene.palette.focus;
    context.lineWidth = 1.5;
    context.strokeRect(x + 0.75, y + 0.75, Math.max(1, wide - 1.5), Math.max(1, high - 1.5));
  }

  private draw(scene: Scene, width: number): void {
    const context = this.frames.getContext('2d');
    const { layout } = scene;
    if (!context || !(layout.whole > 0)) return;
    context.fillStyle = scene.palette.page;
    context.fillRect(0, 0, width, MINIMAP_HEIGHT);
    const levels = levelCount(layout);
    const scale = width / layout.whole;
    const high = levelHeight(levels);
    // Of levels that share a pixel one is drawn.
    for (let y = 0; y < MINIMAP_HEIGHT; y += Math.max(1, high)) {
      const level = Math.floor(y / high);
      if (level >= levels) break;
      const top = scene.inverted ? MINIMAP_HEIGHT - y - Math.max(1, high) : y;
      const end = layout.levels[level + 1];
      for (let at = layout.levels[level]; at < end; ) {
        const from = Math.floor(layout.x[at] * scale);
        const to = Math.max(from + 1, (layout.x[at] + layout.width[at]) * scale);
        context.fillStyle = to - from < 2 ? scene.palette.run : scene.colour(at);
        context.fillRect(from, top, to - from, Math.max(1, high));
        at = Math.max(at + 1, firstEndingAfter(layout, at + 1, end, (from + 1) / scale));
      }
    }
  }
}

function levelHeight(levels: number): number {
  return Math.min(LEVEL_MAX, MINIMAP_HEIGHT / Math.max(1, levels));
}

/** The rectangle that a scene shows, in the strip. */
function seen(scene: Scene, width: number) {
  const { layout, left, viewHeight, scroll } = scene;
  const whole = layout.whole || 1;
  const content = Math.max(1, contentHeight(layout, scene.rowHeight));
  const strip = Math.min(MINIMAP_HEIGHT, levelHeight(levelCount(layout)) * levelCount(layout));
  const all = Math.max(content, viewHeight);
  const high = Math.max(3, Math.min(1, viewHeight / content) * strip);
  const from = scene.inverted ? Math.max(0, all - scroll - viewHeight) : scroll;
  const offset = Math.min(strip - high, (from / content) * strip);
  return {
    x: (left / whole) * width,
    wide: Math.max(2, (scene.width / whole) * width),
    y: scene.inverted ? MINIMAP_HEIGHT - offset - high : offset,
    high,
  };
}

/** The place of a point of the strip: fractions of the graph's width and height. */
export function placeIn(scene: Scene, canvas: HTMLCanvasElement, event: PointerEvent): { x: number; y: number } {
  const edge = canvas.getBoundingClientRect();
  const strip = levelHeight(levelCount(scene.layout)) * levelCount(scene.layout);
  const y = event.clientY - edge.top;
  const part = scene.inverted ? 1 - (MINIMAP_HEIGHT - y) / strip : y / strip;
  return { x: (event.clientX - edge.left) / Math.max(1, edge.width), y: Math.min(1, Math.max(0, part)) };
}

/** True when a scene does not show all of its graph. */
export function isPart(scene: Scene): boolean {
  return (
    scene.width < scene.layout.whole * 0.9999 || contentHeight(scene.layout, scene.rowHeight) > scene.viewHeight + 1
  );
}
