// Colours of the heat map: one path from light to dark (in the dark theme from dark to light), so
// that more is told by lightness alone, with every kind of colour blindness and on paper.

type Theme = 'dark' | 'light';

type Rgb = readonly [red: number, green: number, blue: number];

/** From few to many. Lightness changes by even steps; hue only helps. */
const STOPS: Record<Theme, readonly Rgb[]> = {
  light: [
    [255, 238, 205],
    [250, 205, 145],
    [243, 164, 96],
    [222, 116, 76],
    [184, 72, 78],
    [130, 40, 82],
    [66, 15, 66],
  ],
  dark: [
    [45, 32, 74],
    [88, 40, 108],
    [140, 54, 112],
    [192, 78, 96],
    [230, 120, 78],
    [250, 174, 90],
    [255, 236, 170],
  ],
};

/** Colours of a scale: as many as eyes tell apart beside each other. */
export const STEPS = 24;

/** The scale of a theme, from few to many; nothing at all has no colour of it. */
export function coloursOf(theme: Theme): Rgb[] {
  const stops = STOPS[theme];
  return Array.from({ length: STEPS }, (_, step) => {
    const place = (step / (STEPS - 1)) * (stops.length - 1);
    const low = Math.min(stops.length - 2, Math.floor(place));
    const part = place - low;
    const mixed = stops[low].map((from, channel) => Math.round(from + (stops[low + 1][channel] - from) * part));
    return [mixed[0], mixed[1], mixed[2]];
  });
}

/** What is not in colours of the scale. */
export const GROUNDS: Record<Theme, { empty: Rgb; outside: Rgb; line: string; cursor: string; text: string }> = {
  light: { empty: [246, 248, 250], outside: [221, 226, 232], line: '#10151c', cursor: '#1556c0', text: '#5b6673' },
  dark: { empty: [26, 31, 38], outside: [44, 52, 61], line: '#ffffff', cursor: '#8ab6ff', text: '#9aa7b5' },
};

/**
 * Step of a value above 0. By square root: cells of a few samples are still told apart where one
 * cell has hundreds.
 */
export function stepOf(value: number, most: number): number {
  if (!(value > 0) || !(most > 0)) return 0;
  return Math.min(STEPS - 1, Math.floor(Math.sqrt(value / most) * STEPS));
}

/** Least value of a step: the other way of `stepOf`. */
export function valueOfStep(step: number, most: number): number {
  return (step / STEPS) ** 2 * most;
}

export const css = ([red, green, blue]: Rgb) => `rgb(${red} ${green} ${blue})`;
