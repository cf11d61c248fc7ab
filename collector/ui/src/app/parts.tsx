// Small parts that all pages share.

import type { ComponentChildren } from 'preact';
import { useEffect, useId, useLayoutEffect, useRef, useState } from 'preact/hooks';
import { count } from '../text/format';
import { clipped, printable, shown } from '../text/printable';
import type { Query } from '../query/useQuery';
import type { Trouble } from '../query/errors';

/** A text from outside: as text, with what is hostile written out, the whole of it in the title. */
export function Name({ text, max, empty = '(empty)' }: { text: string; max?: number; empty?: string }) {
  if (text === '') return <span class="name none">{empty}</span>;
  return (
    <bdi class="name" dir="ltr" title={shown(text)}>
      {clipped(text, max)}
    </bdi>
  );
}

/** The last part of a path, the whole of it in the title. */
export function Module({ path }: { path: string }) {
  const base = path.slice(path.lastIndexOf('/') + 1) || path;
  return (
    <bdi class="name module" dir="ltr" title={shown(path)}>
      {clipped(base)}
    </bdi>
  );
}

const ICONS = {
  left: 'M10 3 5 8l5 5',
  right: 'm6 3 5 5-5 5',
  down: 'm4 6 4 4 4-4',
  out: 'M7 12A5 5 0 1 1 7 2a5 5 0 0 1 0 10Zm3.6-1.4L14 14M5 7h4',
  refresh: 'M13 8a5 5 0 1 1-1.5-3.6M13 2v3h-3',
  theme: 'M8 2a6 6 0 1 0 0 12V2Z',
  close: 'm4 4 8 8m0-8-8 8',
  link: 'M6.5 9.5 9.5 6.500M7 4.500l1-1a3 3 0 0 1 4.500 4.500l-1 1M9 11.500l-1 1A3 3 0 0 1 3.500 8l1-1',
  warn: 'M8 2 1.500 13.500h13L8 2Zm0 4.500v3.500m0 1.200v.8',
  person: 'M8 8a3 3 0 1 1 0-6 3 3 0 0 1 0 6Zm-5.500 6a5.500 5.500 0 0 1 11 0',
  plus: 'M8 3v10M3 8h10',
  record: 'M8 14A6 6 0 1 1 8 2a6 6 0 0 1 0 12Zm0-4a2 2 0 1 1 0-4 2 2 0 0 1 0 4Z',
  clock: 'M8 14A6 6 0 1 1 8 2a6 6 0 0 1 0 12Zm0-9.500V8l2.500 1.500',
} as const;

/** A drawing of 16 × 16. */
export function Icon({ of }: { of: keyof typeof ICONS }) {
  return (
    <svg class="icon" viewBox="0 0 16 16" width="14" height="14" aria-hidden="true" focusable="false">
      <path
        d={ICONS[of]}
        fill="none"
        stroke="currentColor"
        stroke-width="1.5"
        stroke-linecap="round"
        stroke-linejoin="round"
      />
    </svg>
  );
}

/** Buttons of which one is pressed. */
export function Choice<T extends string>(props: {
  label: string;
  value: T;
  of: readonly (readonly [T, string, string?])[];
  onChange: (value: T) => void;
}) {
  return (
    <span class="group" role="group" aria-label={props.label}>
      {props.of.map(([value, text, title]) => (
        <button
          key={value}
          type="button"
          aria-pressed={props.value === value}
          title={title}
          onClick={() => props.onChange(value)}
        >
          {text}
        </button>
      ))}
    </span>
  );
}

/** A button that stays pressed. */
export function Toggle(props: {
  pressed: boolean;
  title: string;
  children: ComponentChildren;
  onChange: (pressed: boolean) => void;
  class?: string;
}) {
  return (
    <button
      type="button"
      class={props.class}
      aria-pressed={props.pressed}
      title={props.title}
      onClick={() => props.onChange(!props.pressed)}
    >
      {props.children}
    </button>
  );
}

/** Room between a panel and the edge of the window. Unit: pixels. */
const MARGIN = 6;

/**
 * A button that opens a panel under it. Closes on Escape, and when the focus or a click goes
 * elsewhere.
 */
export function Popover(props: {
  label: ComponentChildren;
  title: string;
  class?: string;
  align?: 'left' | 'right';
  above?: boolean;
  children: (close: () => void) => ComponentChildren;
}) {
  const [open, setOpen] = useState(false);
  const box = useRef<HTMLDivElement>(null);
  const button = useRef<HTMLButtonElement>(null);
  const id = useId();
  const wanted = props.align ?? 'left';
  const [side, setSide] = useState(wanted);
  const panel = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    // Where the button stands at the left edge, because its line was broken, there is no room left
    // of it.
    const outside = open && wanted === 'right' && (panel.current?.getBoundingClientRect().left ?? 0) < 0;
    setSide(outside ? 'left' : wanted);
  }, [open]);
  const [shift, setShift] = useState(0);
  useLayoutEffect(() => {
    // Nor is there right of it, on a phone.
    const right = open ? (panel.current?.getBoundingClientRect().right ?? 0) - shift : 0;
    setShift(Math.min(0, document.documentElement.clientWidth - MARGIN - right));
  }, [open, side]);
  useEffect(() => {
    if (!open) return;
    const outside = (event: Event) => {
      if (!box.current?.contains(event.target as Node)) setOpen(false);
    };
    document.addEventListener('pointerdown', outside);
    document.addEventListener('focusin', outside);
    // What is open belongs to the page that is left.
    const left = () => setOpen(false);
    addEventListener('popstate', left);
    return () => {
      removeEventListener('popstate', left);
      document.removeEventListener('pointerdown', outside);
      document.removeEventListener('focusin', outside);
    };
  }, [open]);
  const close = () => {
    setOpen(false);
    button.current?.focus();
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === 'Escape' && open) {
      event.stopPropagation();
      close();
    }
  };
  return (
    <div class="popover" ref={box} onKeyDown={onKeyDown}>
      <button
        ref={button}
        type="button"
        class={props.class}
        title={props.title}
        aria-haspopup="dialog"
        aria-expanded={open}
        aria-controls={open ? id : undefined}
        onClick={() => setOpen(!open)}
      >
        {props.label}
      </button>
      {open && (
        <div
          id={id}
          ref={panel}
          class={`panel floating ${side}${props.above ? ' above' : ''}`}
          style={shift < 0 ? { transform: `translateX(${shift}px)` } : undefined}
          role="dialog"
          aria-label={props.title}
        >
          {props.children(close)}
        </div>
      )}
    </div>
  );
}

/** What went wrong and what to do about it. */
export function TroubleBox({ trouble, again }: { trouble: Trouble; again?: () => void }) {
  return (
    <div class="trouble" role="alert" data-code={trouble.code}>
      <Icon of="warn" />
      <div>
        <strong>{trouble.title}.</strong> {trouble.advice}
        {trouble.detail !== '' && <p class="said">{shown(trouble.detail)}</p>}
      </div>
      {trouble.retry && again && (
        <button type="button" onClick={again}>
          Try again
        </button>
      )}
    </div>
  );
}

/** True where what is shown of a query is not the answer to the newest one. */
export const isStale = ({ slow, trouble, data }: Query<unknown>) =>
  (slow || trouble !== undefined) && data !== undefined;

/**
 * The states of a question around what shows its answer. `told`: what went wrong with it is said
 * elsewhere.
 */
export function Answer<T>(props: {
  query: Query<T>;
  what: string;
  unit?: string;
  told?: boolean;
  /** What will stand here: room for it is kept, so that nothing moves when the answer comes. */
  room?: 'chart' | 'strips' | 'graph' | 'table';
  children: (data: T) => ComponentChildren;
}) {
  const { query } = props;
  // A problem that is shown elsewhere is not shown again, but the data is just as old.
  const trouble = props.told ? undefined : query.trouble;
  return (
    <div class={`answer${isStale(query) ? ' stale' : ''}`} aria-busy={query.waiting}>
      {query.slow && (
        <div class="waiting" role="status">
          <progress aria-label={`Loading ${props.what}`} />
          {query.progress > 0 && (
            <span>
              {count(query.progress)} {props.unit ?? 'rows'}
            </span>
          )}
        </div>
      )}
      {trouble && <TroubleBox trouble={trouble} again={query.again} />}
      {trouble && query.data !== undefined && <p class="notice">Showing the previous result.</p>}
      {query.data !== undefined ? (
        props.children(query.data)
      ) : query.slow ? (
        <Skeleton room={props.room} />
      ) : (
        !query.trouble && <div class={`quiet-box ${props.room ? `room-${props.room}` : ''}`} />
      )}
    </div>
  );
}

function Skeleton({ room }: { room?: string }) {
  return (
    <div class={`skeleton ${room ? `room-${room}` : ''}`} aria-hidden="true">
      <i /> <i /> <i /> <i />
    </div>
  );
}

/** Where there is nothing to show: why, and what to do. */
export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <strong>{title}</strong>
      {children}
    </div>
  );
}

/** A share as a bar behind its number. */
export function Bar({ fraction, children, tone }: { fraction: number; children: ComponentChildren; tone?: string }) {
  const part = Math.max(0, Math.min(1, Number.isFinite(fraction) ? fraction : 0));
  return (
    <span class={`bar ${tone ?? ''}`}>
      <svg aria-hidden="true" focusable="false" preserveAspectRatio="none" viewBox="0 0 100 1">
        <rect width={100 * part} height="1" />
      </svg>
      <span>{children}</span>
    </span>
  );
}

/** Copies a text and says so. */
export function CopyButton({
  text,
  title,
  children,
}: {
  text: () => string;
  title: string;
  children: ComponentChildren;
}) {
  const [done, setDone] = useState(false);
  useEffect(() => {
    if (!done) return;
    const timer = setTimeout(() => setDone(false), 1500);
    return () => clearTimeout(timer);
  }, [done]);
  const copy = () => {
    navigator.clipboard?.writeText(text()).then(
      () => setDone(true),
      () => setDone(false),
    );
  };
  return (
    <button type="button" title={title} onClick={copy}>
      {done ? 'Copied' : children}
    </button>
  );
}

/** Escaped text for attributes and announcements. */
export const say = (text: string) => (text.length > 200 ? `${printable(text.slice(0, 200))}…` : printable(text));
