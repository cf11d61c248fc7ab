// The heat map on the page: its canvas and axes, what is under the pointer, the keys, and what is
// picked.

import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { Icon } from '../app/parts';
import { useDisplayState } from '../state/store';
import { type Theme, useTheme } from '../state/theme';
import { Tip } from '../flame/FlameGraph';
import { analysis } from '../analysis/client';
import type { LoadedProfile } from '../analysis/protocol';
import type { Pick } from '../query/timestamps';
import { useQuery } from '../query/useQuery';
import * as format from '../text/format';
import { type Grid, beginOf, cellsOf, covered, pickOf, sumOfCells, wallMs } from './grid';
import { HeatCanvas, type HeatLook, cellHeight } from './map';
import { STEPS, coloursOf, css, valueOfStep } from './scale';

export interface HeatMapProps {
  /** Number of the profile, for what only the worker can count. */
  profile: number;
  timestamps: NonNullable<LoadedProfile['timestamps']>;
  grid: Grid;
  /** How long it took to put timestamps into cells. Unit: milliseconds. */
  gridMs: number;
  /** The unit of weights. */
  unit: string;
  pick: Pick | undefined;
  onPick: (pick: Pick | undefined) => void;
}

/** After the last key, how long until what it picked is asked for. Unit: milliseconds. */
const REST_MS = 150;

/** What is picked and where the keys are: picks are shown at once and told when the hand rests. */
function usePicking(grid: Grid, { pick, onPick }: HeatMapProps) {
  const [cursor, setCursor] = useState<number>();
  // Where a pick started, while it may still be made longer.
  const [anchor, setAnchor] = useState<number>();
  const [shown, setShown] = useState(pick);
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  const latest = useRef(onPick);
  latest.current = onPick;
  useEffect(() => setShown(pick), [pick?.from, pick?.until]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const set = (next: Pick | undefined, rest = 0) => {
    clearTimeout(timer.current);
    setShown(next);
    if (rest > 0) timer.current = setTimeout(() => latest.current(next), rest);
    else latest.current(next);
  };
  const between = (one: number, other: number, rest = 0) => set(pickOf(grid, one, other), rest);
  const clear = () => {
    setAnchor(undefined);
    set(undefined);
  };
  return { cursor, setCursor, anchor, setAnchor, shown, between, clear };
}

type Picking = ReturnType<typeof usePicking>;

export function HeatMap(props: HeatMapProps) {
  const { timestamps, grid } = props;
  // Colour is samples, or weight.
  const { samples } = useDisplayState('samples');
  const theme = useTheme();
  const picking = usePicking(grid, props);
  const { box, canvas, spacer, map, hover } = useCanvas({ grid, samples, theme }, picking);
  const { cursor, shown, clear } = picking;
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === 'Escape' && map.current?.giveUp()) event.stopPropagation();
    else if (handleKey(event, grid, picking)) {
      event.preventDefault();
      event.stopPropagation();
    }
  };
  const tip =
    hover ??
    (cursor !== undefined && map.current ? { cell: cursor, ...map.current.placeOf(cursor), key: true } : undefined);
  return (
    <div class="heat" data-grid-ms={props.gridMs.toFixed(1)}>
      <div class="heat-area">
        <div class="heat-axis" aria-hidden="true" style={{ height: `${grid.rows * cellHeight(grid.rows)}px` }}>
          {axisTexts(grid.columnNs).map((text) => (
            <span key={text}>{text}</span>
          ))}
        </div>
        <div
          ref={box}
          class="heat-box"
          tabIndex={0}
          role="application"
          aria-label={`Heat map of ${format.plural(timestamps.count, 'sample')}: ${columnsText(grid.columnNs)} from left to right, the time within each from top to bottom. Arrow keys move by cells, Shift with arrows picks a range, Enter starts and ends one, Escape shows all.`}
          onKeyDown={onKeyDown}
          onBlur={() => picking.setCursor(undefined)}
        >
          <canvas ref={canvas} aria-hidden="true" data-picked={shown ? cellsOf(grid, shown).join('-') : ''} />
          <div class="spacer" ref={spacer} />
        </div>
      </div>
      <div class="heat-foot">
        <Picked {...props} shown={shown} anchored={picking.anchor !== undefined} onClear={clear} />
        <Legend grid={grid} unit={props.unit} samples={samples} theme={theme} />
      </div>
      <p class="hidden" aria-live="polite">
        {cursor !== undefined ? cellText(grid, cursor, props.unit) : ''}
      </p>
      {tip && tip.cell < grid.count.length && (
        <Tip x={tip.x} y={tip.y} children={<CellTip grid={grid} cell={tip.cell} unit={props.unit} />} />
      )}
    </div>
  );
}

/** The canvas, which follows the properties, and what is under the pointer. */
function useCanvas(look: HeatLook, picking: Picking) {
  const { grid } = look;
  const box = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const spacer = useRef<HTMLDivElement>(null);
  const map = useRef<HeatCanvas | undefined>(undefined);
  const [hover, setHover] = useState<{ cell: number; x: number; y: number }>();
  const latest = useRef(picking);
  latest.current = picking;
  useEffect(() => {
    if (!box.current || !canvas.current || !spacer.current) return;
    const made = new HeatCanvas(box.current, canvas.current, spacer.current, look, {
      hover: (cell, x, y) => setHover(cell === undefined ? undefined : { cell, x, y }),
      drag: (from, to) => {
        latest.current.setAnchor(undefined);
        latest.current.between(from, to);
      },
      click: (cell, { extend, touch }) => {
        const { anchor, setAnchor, between } = latest.current;
        // A finger has no Shift and its drag scrolls: the second touch ends what the first started.
        const goesOn = anchor !== undefined && (extend || touch);
        setAnchor(goesOn && touch ? undefined : goesOn ? anchor : cell);
        between(goesOn ? anchor : cell, cell);
      },
    });
    map.current = made;
    return () => made.destroy();
  }, []);
  useEffect(() => {
    map.current?.setLook(look);
    setHover(undefined);
  }, [grid, look.samples, look.theme]);
  const { shown, cursor } = picking;
  useEffect(() => map.current?.setPicked(shown && cellsOf(grid, shown)), [grid, shown?.from, shown?.until]);
  useEffect(() => map.current?.setCursor(cursor), [cursor]);
  return { box, canvas, spacer, map, hover };
}

/** Columns and rows by which keys move. */
const MOVES: Record<string, [columns: number, rows: number]> = {
  ArrowLeft: [-1, 0],
  ArrowRight: [1, 0],
  ArrowUp: [0, -1],
  ArrowDown: [0, 1],
  PageUp: [-10, 0],
  PageDown: [10, 0],
  Home: [0, -Infinity],
  End: [0, Infinity],
};

/** Offsets along a column, from its start. */
function axisTexts(columnNs: number): string[] {
  if (columnNs === 1e9) return ['0 ms', '250', '500', '750', '1 s'];
  return [0, 1, 2, 3, 4].map((quarter) => (quarter === 0 ? '0' : format.duration((columnNs * quarter) / 4)));
}

const columnsText = (columnNs: number) => (columnNs === 1e9 ? 'seconds' : `columns of ${format.duration(columnNs)}`);

/** True when the key means something here. */
function handleKey(event: KeyboardEvent, grid: Grid, picking: Picking): boolean {
  const { cursor, setCursor, anchor, setAnchor, between, clear, shown } = picking;
  const at = cursor ?? (shown ? cellsOf(grid, shown)[0] : grid.first);
  if (event.key in MOVES) {
    const [columns, rows] = MOVES[event.key];
    const isStep = Math.abs(rows) < Infinity;
    const to = cursor === undefined && isStep ? at : covered(grid, at + columns * grid.rows + rows);
    setCursor(to);
    if (event.shiftKey) {
      const from = anchor ?? at;
      setAnchor(from);
      between(from, to, REST_MS);
    }
    return true;
  }
  if (event.key === 'Enter' || event.key === ' ') {
    setCursor(at);
    setAnchor(anchor === undefined ? at : undefined);
    between(anchor ?? at, at);
    return true;
  }
  if (event.key !== 'Escape' || (!shown && anchor === undefined)) return false;
  clear();
  return true;
}

/** Time of day to the millisecond. */
function preciseClock(ms: number): string {
  return `${format.clock(ms)}.${String(Math.floor(((ms % 1000) + 1000) % 1000)).padStart(3, '0')}`;
}

function cellText(grid: Grid, cell: number, unit: string): string {
  return `${preciseClock(wallMs(grid, beginOf(grid, cell)))}: ${format.plural(grid.count[cell], 'sample')}, ${format.weight(grid.weight[cell], unit)}`;
}

function CellTip({ grid, cell, unit }: { grid: Grid; cell: number; unit: string }) {
  return (
    <>
      <div class="tip-head">
        {preciseClock(wallMs(grid, beginOf(grid, cell)))}
        {` ${format.zone(wallMs(grid, beginOf(grid, cell)))}`} <span class="soft">+{format.duration(grid.rowNs)}</span>
      </div>
      {format.plural(grid.count[cell], 'sample')}
      {grid.count[cell] > 0 && unit !== '' && <span class="soft">, {format.weight(grid.weight[cell], unit)}</span>}
    </>
  );
}

/** Samples and weight of a pick; undefined until they are counted. */
function useSum(profile: number, grid: Grid, pick: Pick | undefined) {
  const ofCells = useMemo(() => pick && sumOfCells(grid, pick), [grid, pick?.from, pick?.until]);
  const args = pick && !ofCells ? { id: profile, pick } : undefined;
  const counted = useQuery(args && `span ${JSON.stringify(args)}`, (signal) =>
    args ? analysis.span(args, signal) : Promise.reject(new Error('nothing is picked')),
  );
  return ofCells ?? counted.data;
}

function Picked(props: HeatMapProps & { shown: Pick | undefined; anchored: boolean; onClear: () => void }) {
  const { timestamps, grid, shown, unit } = props;
  const sum = useSum(props.profile, grid, shown);
  if (!shown) {
    return (
      <p class="soft">
        <span class="wide-only">Drag to select a time span, or tap its start and its end.</span>
        <span class="narrow-only">Tap the start and the end of a time span.</span>
        {timestamps.dropped > 0 && (
          <span class="warned">
            {' '}
            {format.plural(timestamps.dropped, 'sample')} {timestamps.dropped === 1 ? 'has' : 'have'} no timestamp and{' '}
            {timestamps.dropped === 1 ? 'is' : 'are'} not on the map.
          </span>
        )}
        {grid.beyond > 0 && (
          <span class="warned">
            {' '}
            {format.plural(grid.beyond, 'sample')} after the first {format.duration(grid.columns * grid.columnNs)}{' '}
            {grid.beyond === 1 ? 'is' : 'are'} not on the map.
          </span>
        )}
      </p>
    );
  }
  return (
    <p class="heat-picked" aria-live="polite">
      <b>
        {preciseClock(wallMs(grid, shown.from))} – {preciseClock(wallMs(grid, shown.until))}
        {` ${format.zone(wallMs(grid, shown.until))}`}
      </b>{' '}
      <span class="soft">
        {format.duration(shown.until - shown.from)}
        {sum && `, ${format.plural(sum.count, 'sample')}, ${format.weight(sum.weight, unit)}`}
        {props.anchored && <span class="narrow-only">; tap its end</span>}
      </span>
      <button type="button" title="Clear the selection (Esc)" onClick={props.onClear}>
        <Icon of="close" /> All of the time
      </button>
    </p>
  );
}

function Legend({ grid, unit, samples, theme }: { grid: Grid; unit: string; samples: boolean; theme: Theme }) {
  const most = samples ? grid.mostCount : grid.mostWeight;
  if (!(most > 0)) return null;
  const amount = (value: number) => (samples ? format.compact(Math.round(value)) : format.weight(value, unit));
  return (
    <span
      class="heat-legend"
      role="img"
      aria-label={`Colours: from light to heavy, at most ${amount(most)} ${samples ? 'samples' : ''} in ${format.duration(grid.rowNs)}`}
    >
      <span class="soft">in {format.duration(grid.rowNs)}:</span> {samples ? 1 : 'less'}
      <svg
        viewBox={`0 0 ${STEPS} 1`}
        preserveAspectRatio="none"
        width="120"
        height="10"
        aria-hidden="true"
        focusable="false"
      >
        {coloursOf(theme).map((colour, step) => (
          <rect key={step} x={step} width="1.02" height="1" fill={css(colour)}>
            <title>{`from ${amount(valueOfStep(step, most))}`}</title>
          </rect>
        ))}
      </svg>
      {amount(most)}
      {samples && ' samples'}
    </span>
  );
}
