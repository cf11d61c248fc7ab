// A flame graph on a canvas: what it shows, what the pointer and the keys do with it.
//
// Independent of the page: it gets a layout and colours, and reports what the user did.

import type { Layout } from './layout';
import { nodeAt } from './layout';
import type { Palette } from './paint';
import { Painter, contentHeight, levelAt, topOf } from './paint';
import type { Scene } from './paint';
import type { Found } from './search';

/** Height of a frame. Unit: CSS pixels. */
export const ROW_HEIGHT = 18;

/** Narrowest part of the width that can be zoomed to: floating point runs out below. */
const ZOOM_MAX = 1e9;

/** How far the pointer moves before a press is a drag. Unit: CSS pixels. */
const DRAG_FROM = 4;

export interface Events {
  /** A frame is to fill the width. */
  zoom(node: number): void;
  /** A part of the width is shown, as fractions. */
  pan(from: number, to: number): void;
  select(node: number | undefined): void;
  hover(node: number | undefined): void;
  /** What can be done with a frame is asked for, at this place of the window. */
  menu(node: number, x: number, y: number): void;
  /** After each drawing: what is seen. */
  drawn(scene: Scene): void;
}

/** How long a finger rests until that means a menu. Unit: milliseconds. */
const LONG_PRESS_MS = 500;

export interface Look {
  palette: Palette;
  colour: (node: number) => string;
  hatched: (node: number) => boolean;
}

/** One graph. */
export class Graph {
  private readonly scene: Scene;
  private readonly painter: Painter | undefined;
  private frame = 0;
  private drag: { x: number; left: number; moved: boolean } | undefined;
  /** Where the pointer is: what is under it changes with what is scrolled or drawn. */
  private pointer: { x: number; y: number } | undefined;
  private rests: ReturnType<typeof setTimeout> | undefined;
  private settle: ReturnType<typeof setTimeout> | undefined;
  private readonly observer: ResizeObserver;
  private readonly control = new AbortController();

  constructor(
    private readonly box: HTMLElement,
    private readonly canvas: HTMLCanvasElement,
    private readonly spacer: HTMLElement,
    layout: Layout,
    look: Look,
    private readonly events: Events,
  ) {
    const context = canvas.getContext('2d', { alpha: false });
    this.painter = context ? new Painter(context) : undefined;
    this.scene = {
      layout,
      ...look,
      found: undefined,
      left: 0,
      width: layout.whole || 1,
      scroll: 0,
      viewWidth: 1,
      viewHeight: 1,
      rowHeight: ROW_HEIGHT,
      inverted: false,
      zoomed: 0,
      hovered: undefined,
      selected: undefined,
      ratio: 1,
    };
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(box);
    this.listen();
    this.resize();
  }

  destroy(): void {
    this.observer.disconnect();
    this.control.abort();
    cancelAnimationFrame(this.frame);
    clearTimeout(this.settle);
    clearTimeout(this.rests);
  }

  /** Shows the part around a place: fractions of the width and of the height. */
  moveTo(x: number, y: number): void {
    const { scene, box } = this;
    const whole = scene.layout.whole || 1;
    if (scene.width < whole) {
      this.show(x * whole - scene.width / 2, scene.width);
      this.tellPan();
    }
    box.scrollTop = y * box.scrollHeight - box.clientHeight / 2;
  }

  /** Where a frame is in the window: the middle of what is seen of it. */
  placeOf(node: number): { x: number; y: number } {
    const { scene, canvas } = this;
    const { layout } = scene;
    const edge = canvas.getBoundingClientRect();
    const scale = scene.viewWidth / scene.width;
    const from = Math.max(0, (layout.x[node] - scene.left) * scale);
    const to = Math.min(scene.viewWidth, (layout.x[node] + layout.width[node] - scene.left) * scale);
    return { x: edge.left + (from + to) / 2, y: edge.top + topOf(scene, layout.depth[node]) + ROW_HEIGHT };
  }

  /** Shows other data. */
  setLayout(layout: Layout, inverted: boolean): void {
    const turned = inverted !== this.scene.inverted;
    // A flame graph stands on its root: where it is looked at is counted from there.
    const fromRoot = this.box.scrollHeight - this.box.scrollTop;
    Object.assign(this.scene, { layout, inverted, hovered: undefined, selected: undefined, zoomed: 0 });
    this.show(0, layout.whole || 1);
    this.resize();
    if (turned) this.box.scrollTop = inverted ? this.box.scrollHeight : 0;
    else if (inverted) this.box.scrollTop = this.box.scrollHeight - fromRoot;
  }

  setLook(look: Look): void {
    Object.assign(this.scene, look);
    this.redraw();
  }

  setFound(found: Found | undefined): void {
    this.scene.found = found;
    this.redraw();
  }

  setSelected(node: number | undefined): void {
    this.scene.selected = node;
    this.redraw();
  }

  /** Lets a frame, or a part of the width, fill the view. */
  setView(zoomed: number, part?: [from: number, to: number]): void {
    const { layout } = this.scene;
    this.scene.zoomed = zoomed;
    if (part) this.show(part[0] * layout.whole, (part[1] - part[0]) * layout.whole);
    else this.show(layout.x[zoomed], layout.width[zoomed] || 1);
  }

  /** Scrolls until a frame can be seen. */
  reveal(node: number): void {
    const top = topOf(this.scene, this.scene.layout.depth[node]);
    if (top < 0) this.box.scrollTop += top;
    else if (top + ROW_HEIGHT > this.scene.viewHeight) this.box.scrollTop += top + ROW_HEIGHT - this.scene.viewHeight;
  }

  private show(left: number, width: number): void {
    const { scene } = this;
    const whole = scene.layout.whole || 1;
    scene.width = Math.min(whole, Math.max(width, whole / ZOOM_MAX));
    scene.left = Math.max(0, Math.min(left, whole - scene.width));
    this.redraw();
  }

  private resize(): void {
    const { scene, box, canvas } = this;
    const [width, height] = [box.clientWidth, box.clientHeight];
    const ratio = Math.min(3, window.devicePixelRatio || 1);
    const content = contentHeight(scene.layout, ROW_HEIGHT);
    this.spacer.style.height = `${Math.max(0, content - height)}px`;
    if (width !== scene.viewWidth || height !== scene.viewHeight || ratio !== scene.ratio) {
      Object.assign(scene, { viewWidth: Math.max(1, width), viewHeight: Math.max(1, height), ratio });
      canvas.width = Math.round(scene.viewWidth * ratio);
      canvas.height = Math.round(scene.viewHeight * ratio);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
      // A resized canvas is empty: not drawing at once would show that.
      this.draw();
    }
    this.redraw();
  }

  private redraw(): void {
    if (this.frame !== 0) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.draw();
    });
  }

  private draw(): void {
    this.scene.scroll = this.box.scrollTop;
    const begun = performance.now();
    this.painter?.paint(this.scene);
    this.canvas.dataset.drawn = String(Number(this.canvas.dataset.drawn ?? 0) + 1);
    this.canvas.dataset.drawMs = (performance.now() - begun).toFixed(2);
    this.events.drawn(this.scene);
  }

  private at({ clientX, clientY }: { clientX: number; clientY: number }): number | undefined {
    const edge = this.canvas.getBoundingClientRect();
    const x = this.scene.left + ((clientX - edge.left) / this.scene.viewWidth) * this.scene.width;
    return nodeAt(this.scene.layout, levelAt(this.scene, clientY - edge.top), x);
  }

  private listen(): void {
    const { canvas, box } = this;
    const { signal } = this.control;
    box.addEventListener('scroll', () => this.scrolled(), { signal, passive: true });
    canvas.addEventListener('pointerdown', (event) => this.press(event), { signal });
    canvas.addEventListener('pointermove', (event) => this.move(event), { signal });
    canvas.addEventListener('pointerup', (event) => this.release(event), { signal });
    canvas.addEventListener('pointercancel', () => this.letGo(), { signal });
    canvas.addEventListener('pointerleave', () => this.leave(), { signal });
    box.addEventListener('contextmenu', (event) => this.contextMenu(event), { signal });
    box.addEventListener('wheel', (event) => this.wheel(event), { signal, passive: false });
  }

  private press(event: PointerEvent): void {
    if (event.button !== 0) return;
    this.drag = { x: event.clientX, left: this.scene.left, moved: false };
    if (event.pointerType !== 'touch') return;
    clearTimeout(this.rests);
    const { clientX, clientY } = event;
    this.rests = setTimeout(() => this.openMenu({ clientX, clientY }), LONG_PRESS_MS);
  }

  private letGo(): void {
    clearTimeout(this.rests);
    this.drag = undefined;
  }

  /** The pointer stays while what is below it moves. */
  private scrolled(): void {
    this.redraw();
    clearTimeout(this.rests);
    if (this.pointer) this.hover(this.at({ clientX: this.pointer.x, clientY: this.pointer.y }));
  }

  private leave(): void {
    this.pointer = undefined;
    this.hover(undefined);
  }

  private openMenu(at: { clientX: number; clientY: number }): void {
    // What is pressed is no click any more.
    this.letGo();
    this.scene.scroll = this.box.scrollTop;
    const node = this.at(at);
    if (node === undefined) return;
    this.events.select(node);
    this.events.menu(node, at.clientX, at.clientY);
  }

  private contextMenu(event: MouseEvent): void {
    event.preventDefault();
    // A finger's comes from the timer, which not every browser has an event for; a key's is of what
    // is chosen.
    if ('pointerType' in event && event.pointerType === 'touch') return;
    if (event.button === 2) {
      this.openMenu(event);
      return;
    }
    const { selected } = this.scene;
    if (selected === undefined) return;
    const { x, y } = this.placeOf(selected);
    this.events.menu(selected, x, y);
  }

  private move(event: PointerEvent): void {
    const { drag, scene } = this;
    if (drag && event.buttons & 1 && event.pointerType !== 'touch') {
      const by = event.clientX - drag.x;
      if (!drag.moved && Math.abs(by) >= DRAG_FROM && scene.width < scene.layout.whole) {
        drag.moved = true;
        this.canvas.setPointerCapture(event.pointerId);
      }
      if (drag.moved) {
        this.show(drag.left - (by / scene.viewWidth) * scene.width, scene.width);
        this.hover(undefined);
        this.tellPan();
        return;
      }
    }
    if (event.pointerType === 'touch') {
      if (drag && Math.abs(event.clientX - drag.x) >= DRAG_FROM) clearTimeout(this.rests);
      return;
    }
    this.pointer = { x: event.clientX, y: event.clientY };
    this.hover(this.at(event));
  }

  private release(event: PointerEvent): void {
    const { drag } = this;
    this.letGo();
    if (!drag || drag.moved) return;
    const node = this.at(event);
    this.events.select(node);
    if (node !== undefined) this.events.zoom(node);
  }

  private hover(node: number | undefined): void {
    if (node === this.scene.hovered) return;
    this.scene.hovered = node;
    this.canvas.classList.toggle('pointing', node !== undefined);
    this.redraw();
    this.events.hover(node);
  }

  // With Ctrl (which a pinch sends too) the width is zoomed around the pointer; sideways it is
  // moved.
  private wheel(event: WheelEvent): void {
    const { scene } = this;
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      const edge = this.canvas.getBoundingClientRect();
      const at = (event.clientX - edge.left) / scene.viewWidth;
      const anchor = scene.left + at * scene.width;
      const width = Math.min(
        scene.layout.whole,
        scene.width * Math.exp(Math.max(-100, Math.min(100, event.deltaY)) * 0.005),
      );
      this.show(anchor - at * width, width);
      this.tellPan();
    } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      if (scene.width >= scene.layout.whole) return;
      event.preventDefault();
      const by = event.deltaX || event.deltaY;
      this.show(scene.left + (by / scene.viewWidth) * scene.width, scene.width);
      this.tellPan();
    }
  }

  // The address follows when the hand rests.
  private tellPan(): void {
    clearTimeout(this.settle);
    this.settle = setTimeout(() => {
      const { scene } = this;
      this.events.pan(scene.left / scene.layout.whole, (scene.left + scene.width) / scene.layout.whole);
    }, 150);
  }
}

/** The node that a key leads to from another; undefined when there is none there. */
export function neighbour(
  layout: Layout,
  node: number,
  way: 'parent' | 'child' | 'left' | 'right',
): number | undefined {
  switch (way) {
    case 'parent':
      return node === 0 ? undefined : layout.parent[node];
    case 'child': {
      let best: number | undefined;
      for (let child = layout.firstChild[node]; child < layout.endChild[node]; child++) {
        if (best === undefined || layout.width[child] > layout.width[best]) best = child;
      }
      return best;
    }
    case 'left':
    case 'right': {
      const level = layout.depth[node];
      const next = way === 'left' ? node - 1 : node + 1;
      return next >= layout.levels[level] && next < layout.levels[level + 1] ? next : undefined;
    }
  }
}

/** The next match after a node, around the end; undefined when nothing matches. */
export function nextMatch(layout: Layout, found: Found, from: number, back: boolean): number | undefined {
  const size = layout.name.length;
  for (let step = 1; step <= size; step++) {
    const node = (((back ? from - step : from + step) % size) + size) % size;
    if (found.mask[node] === 1) return node;
  }
  return undefined;
}
