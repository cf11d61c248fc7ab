// Dark or light: as the system says, until somebody chooses. Kept by the browser, not by the link.

import { useEffect, useState } from 'preact/hooks';

export type Theme = 'dark' | 'light';

const KEY = 'fleetprof-theme';

let current: Theme = 'light';
const listeners = new Set<(theme: Theme) => void>();

function chosen(): Theme | undefined {
  try {
    const value = localStorage.getItem(KEY);
    return value === 'dark' || value === 'light' ? value : undefined;
  } catch {
    // Storage is forbidden: the choice holds until the page is left.
    return undefined;
  }
}

function show(theme: Theme): void {
  current = theme;
  document.documentElement.dataset.theme = theme;
  for (const listener of [...listeners]) listener(theme);
}

/** Takes the theme that was chosen, or that of the system, which is followed then. */
export function followTheme(): void {
  const system = matchMedia('(prefers-color-scheme: dark)');
  const ofSystem = () => (system.matches ? 'dark' : 'light');
  show(chosen() ?? ofSystem());
  system.addEventListener('change', () => {
    if (!chosen()) show(ofSystem());
  });
}

/** Chooses the other theme. */
export function flipTheme(): void {
  const next = current === 'dark' ? 'light' : 'dark';
  try {
    localStorage.setItem(KEY, next);
  } catch {
    // As above.
  }
  show(next);
}

/** The theme in force. */
export function useTheme(): Theme {
  const [theme, setTheme] = useState(current);
  useEffect(() => {
    // It may have changed since it was drawn.
    setTheme(current);
    listeners.add(setTheme);
    return () => {
      listeners.delete(setTheme);
    };
  }, []);
  return theme;
}
