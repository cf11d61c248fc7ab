// Which time is looked at: ranges that move with the clock, exact ones, and live.

import { useState } from 'preact/hooks';
import { Icon, Popover, Toggle } from '../app/parts';
import { written, zone } from '../text/format';
import type { Range, Spec } from './range';
import { BACKWARDS, PRESETS, absoluteSpec, isRelative, resolve, shifted, title, widened } from './range';

/** A range that can be chosen. */
interface Chosen {
  spec: Spec;
  range: Range | undefined;
  now: () => number;
  onRange: (spec: Spec) => void;
}

interface Props extends Chosen {
  live: boolean;
  onLive: (live: boolean) => void;
  onRefresh: () => void;
}

export function TimePicker(props: Props) {
  const { spec, range } = props;
  const move = (to: Range) => props.onRange(absoluteSpec(to));
  return (
    <div class="time" role="group" aria-label="Time range">
      <button
        type="button"
        class="square"
        title="Back half the range"
        aria-label="Earlier"
        disabled={!range}
        onClick={() => range && move(shifted(range, -0.5, props.now()))}
      >
        <Icon of="left" />
      </button>
      <RangePopover {...props} title="Choose the time range" align="right" />
      <button
        type="button"
        class="square"
        title="Forward half the range"
        aria-label="Later"
        disabled={!range || spec.to === 'now'}
        onClick={() => range && move(shifted(range, 0.5, props.now()))}
      >
        <Icon of="right" />
      </button>
      <button
        type="button"
        class="square"
        title="Zoom out 2×"
        aria-label="Zoom out"
        disabled={!range}
        onClick={() => range && move(widened(range, props.now()))}
      >
        <Icon of="out" />
      </button>
      <Toggle class="live" pressed={props.live} title="Auto-refresh every 10 s" onChange={props.onLive}>
        <span class="dot" /> Live
      </Toggle>
      <button type="button" class="square" title="Refresh (r)" aria-label="Refresh" onClick={props.onRefresh}>
        <Icon of="refresh" />
      </button>
    </div>
  );
}

/** A button with the range, and what to choose another by. */
export function RangePopover(props: Chosen & { title: string; align: 'left' | 'right' }) {
  return (
    <Popover
      title={props.title}
      class="range"
      align={props.align}
      label={
        <>
          <Icon of="clock" /> <span>{title(props.spec)}</span> <Icon of="down" />
        </>
      }
    >
      {(close) => <RangePanel {...props} close={close} />}
    </Popover>
  );
}

function RangePanel(props: Chosen & { close: () => void }) {
  const { spec, range } = props;
  const local = (text: string, ms: number | undefined) => (isRelative(text) || ms === undefined ? text : written(ms));
  const [from, setFrom] = useState(local(spec.from, range?.from));
  const [to, setTo] = useState(local(spec.to, range?.to));
  const found = resolve({ from, to }, props.now());
  const wrong = typeof found === 'string' ? found : undefined;
  const apply = (event: Event) => {
    event.preventDefault();
    if (typeof found === 'string') return;
    const part = (text: string, ms: number) =>
      isRelative(text) ? text.replace(/\s/g, '') : absoluteSpec({ from: ms, to: ms }).from;
    props.onRange({ from: part(from, found.from), to: part(to, found.to) });
    props.close();
  };
  return (
    <div class="range-panel">
      <form onSubmit={apply}>
        <label>
          From
          <input
            value={from}
            spellcheck={false}
            autocomplete="off"
            aria-invalid={!!wrong}
            onInput={(event) => setFrom(event.currentTarget.value)}
          />
        </label>
        <label>
          To
          <input
            value={to}
            spellcheck={false}
            autocomplete="off"
            aria-invalid={!!wrong}
            onInput={(event) => setTo(event.currentTarget.value)}
          />
        </label>
        <p class={wrong ? 'wrong' : 'hint'} aria-live="polite">
          {wrong ?? `Time in ${zone(range?.to ?? props.now())}, relative (now-90m) or ISO 8601`}
        </p>
        {wrong === BACKWARDS && (
          <button
            type="button"
            onClick={() => {
              setFrom(to);
              setTo(from);
            }}
          >
            ⇄ Swap
          </button>
        )}
        <button type="submit" class="primary" disabled={!!wrong}>
          Apply
        </button>
      </form>
      <ul>
        {PRESETS.map((preset) => (
          <li key={preset.from}>
            <button
              type="button"
              aria-pressed={spec.from === preset.from && spec.to === 'now'}
              onClick={() => {
                props.onRange({ from: preset.from, to: 'now' });
                props.close();
              }}
            >
              {preset.label}
            </button>
          </li>
        ))}
      </ul>
    </div>
  );
}
