// Dark or light: as the system says, until somebody chooses.

import { useEffect, useState } from 'preact/hooks';

export type Theme = 'dark' | 'light';

const KEY = 'fleetprof-theme';

function chosen(): Theme | undefined {
  try {
    const value = localStorage.getItem(KEY);
    return value === 'dark' || value === 'light' ? value : undefined;
  } catch {
    // Storage is forbidden: the choice holds until the page is left.
    return undefined;
  }
}

const system = () => matchMedia('(prefers-color-scheme: dark)');

/** The theme in force, and how to change to the other. */
export function useTheme(): [Theme, () => void] {
  const [theme, setTheme] = useState<Theme>(() => chosen() ?? (system().matches ? 'dark' : 'light'));
  useEffect(() => {
    document.documentElement.dataset.theme = theme;
  }, [theme]);
  useEffect(() => {
    const query = system();
    const follow = () => {
      if (!chosen()) setTheme(query.matches ? 'dark' : 'light');
    };
    query.addEventListener('change', follow);
    return () => query.removeEventListener('change', follow);
  }, []);
  return [
    theme,
    () => {
      const next = theme === 'dark' ? 'light' : 'dark';
      try {
        localStorage.setItem(KEY, next);
      } catch {
        // As above.
      }
      setTheme(next);
    },
  ];
}
