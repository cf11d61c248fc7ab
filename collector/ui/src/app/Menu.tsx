// A menu at a place of the window: what can be done with what stands there.

import type { ComponentChildren } from 'preact';
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';

export interface MenuItem {
  id: string;
  label: ComponentChildren;
  /** The key that does the same where the menu was opened. */
  keys?: string;
  run: () => void;
}

interface Props {
  x: number;
  y: number;
  label: string;
  head?: ComponentChildren;
  items: readonly MenuItem[];
  /** It was left, with nothing done or after what was chosen. */
  onClose: () => void;
}

export function Menu({ x, y, label, head, items, onClose }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const [at, setAt] = useState({ left: x, top: y });
  const latest = useRef(onClose);
  latest.current = onClose;
  const before = useRef<Element | null>(null);
  useLayoutEffect(() => {
    before.current = document.activeElement;
    const size = box.current?.getBoundingClientRect();
    if (size)
      setAt({
        left: Math.max(8, Math.min(x, innerWidth - size.width - 8)),
        top: Math.max(8, Math.min(y, innerHeight - size.height - 8)),
      });
    box.current?.querySelector<HTMLElement>('[role=menuitem]')?.focus({ preventScroll: true });
    return () => {
      if (box.current?.contains(document.activeElement) ?? true)
        (before.current as HTMLElement | null)?.focus?.({ preventScroll: true });
    };
  }, []);
  useEffect(() => {
    const outside = (event: Event) => {
      if (!box.current?.contains(event.target as Node)) latest.current();
    };
    const close = () => latest.current();
    document.addEventListener('pointerdown', outside, true);
    addEventListener('blur', close);
    addEventListener('resize', close);
    return () => {
      document.removeEventListener('pointerdown', outside, true);
      removeEventListener('blur', close);
      removeEventListener('resize', close);
    };
  }, []);
  const onKeyDown = (event: KeyboardEvent) => {
    const all = [...(box.current?.querySelectorAll<HTMLElement>('[role=menuitem]') ?? [])];
    const now = all.indexOf(document.activeElement as HTMLElement);
    const go = (to: number) => all[(to + all.length) % all.length]?.focus();
    if (event.key === 'ArrowDown') go(now + 1);
    else if (event.key === 'ArrowUp') go(now - 1);
    else if (event.key === 'Home') go(0);
    else if (event.key === 'End') go(-1);
    else if (event.key === 'Escape' || event.key === 'Tab') onClose();
    else return event.stopPropagation();
    event.preventDefault();
    event.stopPropagation();
  };
  return (
    <div
      ref={box}
      class="panel context-menu"
      role="menu"
      aria-label={label}
      style={{ left: `${at.left}px`, top: `${at.top}px` }}
      onKeyDown={onKeyDown}
      onContextMenu={(event) => event.preventDefault()}
    >
      {head && (
        <div class="context-head" role="presentation">
          {head}
        </div>
      )}
      {items.map(({ id, label: text, keys, run }) => (
        <button
          key={id}
          type="button"
          role="menuitem"
          tabIndex={-1}
          onClick={() => {
            onClose();
            run();
          }}
        >
          <span>{text}</span>
          {keys && <kbd>{keys}</kbd>}
        </button>
      ))}
    </div>
  );
}
