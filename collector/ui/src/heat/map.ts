// A heat map on a canvas: what it shows, what the pointer does with it.
//
// Knows nothing of the page: it is given a grid, colours and what is picked, and tells what was
// done. Only the columns that can be seen are drawn, a pixel a cell, which the canvas then makes
// larger: the work is bounded by the width of the window, not by the length of the time.

import { type Grid, covered, wallMs } from './grid';
import { GROUNDS, coloursOf, stepOf } from './scale';
import { clock, written } from '../text/format';

/** Height of all cells of a column, where there are not more rows than that. Unit: CSS pixels. */
const HEIGHT = 200;

/** Height of a cell by the number of rows. Unit: CSS pixels. */
export function cellHeight(rows: number): number {
  return Math.max(1, Math.min(8, Math.floor(HEIGHT / rows)));
}

/** Height of the time axis below the cells. Unit: CSS pixels. */
const AXIS_HEIGHT = 18;

/** Width of a column: as there is room, within these. Unit: CSS pixels. Fingers need more. */
const COLUMN_MIN = 5;
const COLUMN_MIN_TOUCH = 9;
const COLUMN_MAX = 200;

/** How far the pointer moves before a press is a drag. Unit: CSS pixels. */
const DRAG_FROM = 3;

/** Room of a time on the axis. Unit: CSS pixels. */
const LABEL_WIDTH = 74;

/** Columns between times on the axis. */
const LABEL_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600];

/** A time on the axis: the day stands where columns are long. */
function axisTime(ms: number, columnNs: number): string {
  if (columnNs >= 60e9) return written(ms).slice(5, 16);
  return columnNs < 1e9 ? `${clock(ms)}.${String(Math.floor(ms % 1000)).padStart(3, '0')}` : clock(ms);
}

export interface HeatEvents {
  hover(cell: number | undefined, x: number, y: number): void;
  /** From cell to cell, in the order of the hand. */
  drag(from: number, to: number): void;
  /** A cell was clicked; with Shift, or by a finger, to go on from the one before. */
  click(cell: number, how: { extend: boolean; touch: boolean }): void;
}

export interface HeatLook {
  grid: Grid;
  /** Colour is samples, not weight. */
  samples: boolean;
  theme: 'dark' | 'light';
}

/** One map. */
export class HeatCanvas {
  private readonly context: CanvasRenderingContext2D | null;
  private readonly cells = document.createElement('canvas');
  private look: HeatLook;
  private picked: [first: number, end: number] | undefined;
  private cursor: number | undefined;
  private hovered: number | undefined;
  private view = { width: 1, ratio: 1, column: COLUMN_MAX };
  private press: { cell: number; x: number; y: number; to: number; moved: boolean } | undefined;
  private frame = 0;
  private readonly observer: ResizeObserver;
  private readonly control = new AbortController();

  constructor(
    private readonly box: HTMLElement,
    private readonly canvas: HTMLCanvasElement,
    private readonly spacer: HTMLElement,
    look: HeatLook,
    private readonly events: HeatEvents,
  ) {
    this.look = look;
    this.context = canvas.getContext('2d', { alpha: false });
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(box);
    this.listen();
    this.resize();
  }

  destroy(): void {
    this.observer.disconnect();
    this.control.abort();
    cancelAnimationFrame(this.frame);
  }

  setLook(look: HeatLook): void {
    this.look = look;
    this.press = undefined;
    this.resize();
  }

  /** Shows which cells are picked. */
  setPicked(cells: [first: number, end: number] | undefined): void {
    this.picked = cells;
    this.redraw();
  }

  /** Shows where the keys are. */
  setCursor(cell: number | undefined): void {
    this.cursor = cell;
    if (cell !== undefined) this.reveal(cell);
    this.redraw();
  }

  /** Where a cell is, in the window: for a tip that no pointer asked for. */
  placeOf(cell: number): { x: number; y: number } {
    const edge = this.canvas.getBoundingClientRect();
    const { column } = this.view;
    return {
      x: edge.left + (Math.floor(cell / this.rows) + 0.5) * column - this.box.scrollLeft,
      y: edge.top + ((cell % this.rows) + 0.5) * this.cell,
    };
  }

  private reveal(cell: number): void {
    const left = Math.floor(cell / this.rows) * this.view.column;
    if (left < this.box.scrollLeft) this.box.scrollLeft = left;
    else if (left + this.view.column > this.box.scrollLeft + this.view.width)
      this.box.scrollLeft = left + this.view.column - this.view.width;
  }

  private resize(): void {
    const { grid } = this.look;
    const width = Math.max(1, this.box.clientWidth);
    const ratio = Math.min(3, window.devicePixelRatio || 1);
    const least = matchMedia('(pointer: coarse)').matches ? COLUMN_MIN_TOUCH : COLUMN_MIN;
    const column = Math.max(least, Math.min(COLUMN_MAX, width / grid.columns));
    const height = this.rows * this.cell + AXIS_HEIGHT;
    const [wide, high] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (this.canvas.width !== wide || this.canvas.height !== high) {
      [this.canvas.width, this.canvas.height] = [wide, high];
      this.canvas.style.width = `${width}px`;
      this.canvas.style.height = `${height}px`;
    }
    this.spacer.style.width = `${Math.ceil(column * grid.columns)}px`;
    this.view = { width, ratio, column };
    this.canvas.dataset.columns = String(grid.columns);
    this.canvas.dataset.column = String(column);
    // A resized canvas is empty: not drawing at once would show that.
    this.draw();
  }

  private redraw(): void {
    if (this.frame !== 0) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.draw();
    });
  }

  private draw(): void {
    const { context, view } = this;
    if (!context) return;
    const begun = performance.now();
    const ground = GROUNDS[this.look.theme];
    context.setTransform(view.ratio, 0, 0, view.ratio, 0, 0);
    context.fillStyle = getComputedStyle(this.box).getPropertyValue('--panel') || '#888';
    context.fillRect(0, 0, view.width, this.rows * this.cell + AXIS_HEIGHT);
    const first = Math.max(0, Math.floor(this.box.scrollLeft / view.column));
    const end = Math.min(this.look.grid.columns, Math.ceil((this.box.scrollLeft + view.width) / view.column));
    if (end > first) {
      this.drawCells(context, first, end);
      this.drawPicked(context);
      this.drawAxis(context, first, end, ground.text);
    }
    for (const cell of [this.cursor, this.hovered])
      if (cell !== undefined) this.outline(context, cell, cell + 1, ground.cursor);
    this.canvas.dataset.drawn = String(Number(this.canvas.dataset.drawn ?? 0) + 1);
    this.canvas.dataset.drawMs = (performance.now() - begun).toFixed(2);
  }

  private drawCells(context: CanvasRenderingContext2D, first: number, end: number): void {
    const { grid, samples, theme } = this.look;
    const columns = end - first;
    const scratch = this.cells.getContext('2d');
    if (!scratch) return;
    if (this.cells.width !== columns || this.cells.height !== this.rows)
      [this.cells.width, this.cells.height] = [columns, this.rows];
    const image = scratch.createImageData(columns, this.rows);
    const colours = coloursOf(theme);
    const { empty, outside } = GROUNDS[theme];
    const [values, most] = samples ? [grid.count, grid.mostCount] : [grid.weight, grid.mostWeight];
    for (let column = 0; column < columns; column++) {
      for (let row = 0; row < this.rows; row++) {
        const cell = (first + column) * this.rows + row;
        const colour =
          cell < grid.first || cell >= grid.end
            ? outside
            : values[cell] > 0
              ? colours[stepOf(values[cell], most)]
              : empty;
        const place = 4 * (row * columns + column);
        image.data[place] = colour[0];
        image.data[place + 1] = colour[1];
        image.data[place + 2] = colour[2];
        image.data[place + 3] = 255;
      }
    }
    scratch.putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(
      this.cells,
      0,
      0,
      columns,
      this.rows,
      this.left(first),
      0,
      columns * this.view.column,
      this.rows * this.cell,
    );
  }

  private left(column: number): number {
    return column * this.view.column - this.box.scrollLeft;
  }

  /** Cells from `first` to before `end`, in order of time, as a shape: steps at both ends. */
  private shape(first: number, end: number): Path2D {
    const path = new Path2D();
    const [from, until] = [Math.floor(first / this.rows), Math.floor((end - 1) / this.rows)];
    const [top, bottom] = [(first % this.rows) * this.cell, (((end - 1) % this.rows) + 1) * this.cell];
    const whole = this.rows * this.cell;
    const [x0, x1, x2, x3] = [this.left(from), this.left(from + 1), this.left(until), this.left(until + 1)];
    const points: [number, number][] =
      from === until
        ? [
            [x0, top],
            [x1, top],
            [x1, bottom],
            [x0, bottom],
          ]
        : [
            [x0, top],
            [x1, top],
            [x1, 0],
            [x3, 0],
            [x3, bottom],
            [x2, bottom],
            [x2, whole],
            [x0, whole],
          ];
    for (const [at, [x, y]] of points.entries()) at === 0 ? path.moveTo(x, y) : path.lineTo(x, y);
    path.closePath();
    return path;
  }

  private outline(context: CanvasRenderingContext2D, first: number, end: number, colour: string): void {
    context.strokeStyle = colour;
    context.lineWidth = 1.5;
    context.stroke(this.shape(first, end));
  }

  private drawPicked(context: CanvasRenderingContext2D): void {
    const { grid, theme } = this.look;
    const { press } = this;
    const picked: [number, number] | undefined = press?.moved
      ? [Math.min(press.cell, press.to), Math.max(press.cell, press.to) + 1]
      : this.picked;
    if (!picked) return;
    context.globalAlpha = 0.72;
    if (picked[0] > 0) context.fill(this.shape(0, picked[0]));
    if (picked[1] < grid.columns * this.rows) context.fill(this.shape(picked[1], grid.columns * this.rows));
    context.globalAlpha = 1;
    this.outline(context, picked[0], picked[1], GROUNDS[theme].line);
  }

  private drawAxis(context: CanvasRenderingContext2D, first: number, end: number, colour: string): void {
    const { grid } = this.look;
    const every = LABEL_STEPS.find((step) => step * this.view.column >= LABEL_WIDTH) ?? 7200;
    context.fillStyle = colour;
    context.font = '11px system-ui, sans-serif';
    context.textBaseline = 'top';
    const firstColumn = Math.round(grid.startMs / (grid.columnNs / 1e6));
    let free = -Infinity;
    for (let column = first; column < end; column++) {
      const alone = column === first && end - first <= every;
      if ((firstColumn + column) % every !== 0 && !alone) continue;
      const x = this.left(column);
      if (x < 0) continue;
      context.fillRect(x, this.rows * this.cell, 1, 4);
      if (x < free || (x + LABEL_WIDTH * 0.8 > this.view.width && free > 0)) continue;
      context.fillText(
        axisTime(wallMs(grid, grid.originNs + column * grid.columnNs), grid.columnNs),
        x + 3,
        this.rows * this.cell + 4,
      );
      free = x + LABEL_WIDTH * 0.85;
    }
  }

  /** The cell under the pointer; at the edges the nearest that is covered. */
  private at(event: PointerEvent): number {
    const edge = this.canvas.getBoundingClientRect();
    const { grid } = this.look;
    const column = Math.floor((event.clientX - edge.left + this.box.scrollLeft) / this.view.column);
    const row = Math.floor((event.clientY - edge.top) / this.cell);
    const inside =
      Math.max(0, Math.min(grid.columns - 1, column)) * this.rows + Math.max(0, Math.min(this.rows - 1, row));
    return covered(grid, inside);
  }

  private isInside(event: PointerEvent): boolean {
    const edge = this.canvas.getBoundingClientRect();
    return (
      event.clientY - edge.top < this.rows * this.cell &&
      event.clientX - edge.left + this.box.scrollLeft < this.view.column * this.look.grid.columns
    );
  }

  private get rows(): number {
    return this.look.grid.rows;
  }

  private get cell(): number {
    return cellHeight(this.look.grid.rows);
  }

  private listen(): void {
    const { signal } = this.control;
    const { canvas } = this;
    this.box.addEventListener('scroll', () => this.redraw(), { signal, passive: true });
    canvas.addEventListener('pointerdown', (event) => this.down(event), { signal });
    canvas.addEventListener('pointermove', (event) => this.move(event), { signal });
    canvas.addEventListener('pointerup', (event) => this.up(event), { signal });
    // The browser took the finger for scrolling.
    canvas.addEventListener('pointercancel', () => this.giveUp(), { signal });
    canvas.addEventListener('pointerleave', () => this.hover(undefined, 0, 0), { signal });
  }

  /** Ends a drag without picking. True: there was one. */
  giveUp(): boolean {
    const was = this.press?.moved === true;
    this.press = undefined;
    this.redraw();
    return was;
  }

  private down(event: PointerEvent): void {
    if (event.button !== 0 || !this.isInside(event)) return;
    const cell = this.at(event);
    this.press = { cell, x: event.clientX, y: event.clientY, to: cell, moved: false };
  }

  private move(event: PointerEvent): void {
    const { press } = this;
    if (event.pointerType === 'touch') return;
    if (press && event.buttons & 1) {
      if (!press.moved && Math.hypot(event.clientX - press.x, event.clientY - press.y) >= DRAG_FROM) {
        press.moved = true;
        this.canvas.setPointerCapture(event.pointerId);
      }
      const edge = this.box.getBoundingClientRect();
      if (event.clientX < edge.left) this.box.scrollLeft += event.clientX - edge.left;
      else if (event.clientX > edge.right) this.box.scrollLeft += event.clientX - edge.right;
      press.to = this.at(event);
    }
    this.hover(press?.moved || this.isInside(event) ? this.at(event) : undefined, event.clientX, event.clientY);
    if (press?.moved) this.redraw();
  }

  private up(event: PointerEvent): void {
    const { press } = this;
    this.press = undefined;
    this.redraw();
    if (!press) return;
    const touch = event.pointerType === 'touch';
    if (press.moved) this.events.drag(press.cell, press.to);
    else if (!touch || Math.hypot(event.clientX - press.x, event.clientY - press.y) < 10)
      this.events.click(press.cell, { extend: event.shiftKey, touch });
  }

  private hover(cell: number | undefined, x: number, y: number): void {
    if (cell !== this.hovered) {
      this.hovered = cell;
      this.redraw();
    }
    this.events.hover(cell, x, y);
  }
}
