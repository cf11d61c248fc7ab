// Colours of frames: by kind, by module, or by change. Text on all of them is dark, in either
// theme.
//
// A colour means something before a name is read: native code, nearly all of most profiles, is a
// neutral blue-grey of its module's family; the kernel is warm, generated code green, interpreted
// code violet. What is no code is hatched grey. Amber is for warnings alone. The SVG of the
// collector and of `agent-ctl` (`profile/src/formats/svg.rs`) has the same colours.

import { KIND } from '../query/outcome';
import { hash } from '../text/hash';
import type { Change } from './diff';
import type { NameTable } from './names';
import { KIND_START } from './transforms';
import { KIND_LABEL, isGroup } from './tree';

type Theme = 'dark' | 'light';

/** Hue, saturation and lightness of each kind; shades around them tell neighbours apart. */
const BY_KIND: Record<number, [hue: number, saturation: number, lightness: number]> = {
  [KIND.native]: [212, 24, 77],
  [KIND.kernel]: [14, 74, 72],
  [KIND.jit]: [138, 38, 66],
  [KIND.interpreted]: [268, 52, 79],
  [KIND.inlined]: [190, 34, 74],
  [KIND_LABEL]: [220, 14, 66],
  [KIND_START]: [215, 8, 84],
};

/**
 * Families of modules: hues between green-blue and blue-violet that differ by eye and are no other
 * kind's.
 */
const FAMILIES: readonly (readonly [hue: number, saturation: number, lightness: number])[] = [
  [212, 24, 77],
  [199, 26, 74],
  [226, 26, 79],
  [205, 16, 70],
  [234, 20, 74],
  [216, 34, 81],
];

const SHADES = 8;

/** What a kind is called and coloured in the legend. */
export const KIND_LEGEND: readonly { kind: number; label: string }[] = [
  { kind: KIND.native, label: 'native' },
  { kind: KIND.inlined, label: 'inlined' },
  { kind: KIND.kernel, label: 'kernel' },
  { kind: KIND.jit, label: 'JIT' },
  { kind: KIND.interpreted, label: 'interpreted' },
];

const dimmed = (lightness: number, theme: Theme) => (theme === 'dark' ? lightness * 0.9 : lightness);

/** The colour of a kind; `shade` is 0 … 1. */
export function kindColour(kind: number, theme: Theme, shade = 0.5): string {
  const [hue, saturation, lightness] = BY_KIND[kind] ?? [220, 6, 76];
  const step = shade - 0.5;
  return `hsl(${(hue + step * 14).toFixed(1)} ${saturation}% ${dimmed(lightness - step * 9, theme).toFixed(1)}%)`;
}

/** The colour of native code of a module; `shade` is 0 … 1. */
export function nativeColour(module: string, theme: Theme, shade = 0.5): string {
  const file = module.slice(module.lastIndexOf('/') + 1);
  // Versions of one library are one family: `libc.so.6`, `libc-2.31.so`.
  const family = file.replace(/[-.](so|[0-9]).*$/, '');
  const [hue, saturation, lightness] = FAMILIES[hash(family) % FAMILIES.length];
  const step = shade - 0.5;
  return `hsl(${hue + step * 5} ${saturation}% ${dimmed(lightness - step * 8, theme).toFixed(1)}%)`;
}

/** The colour of a module. */
export function moduleColour(module: string, theme: Theme): string {
  if (module === '') return `hsl(220 6% ${dimmed(76, theme)}%)`;
  const mixed = hash(module);
  // The golden angle spreads hues; few modules of one stack look alike.
  const hue = (mixed % 360) * 137.508;
  return `hsl(${(hue % 360).toFixed(0)} ${36 + ((mixed >>> 12) % 22)}% ${dimmed(69 + ((mixed >>> 20) % 10), theme).toFixed(0)}%)`;
}

/** Colours by name id. */
export function nameColours(names: NameTable, by: 'kind' | 'module', theme: Theme): string[] {
  const shades = new Map<number, string[]>();
  const shadesOf = (kind: number) => {
    let found = shades.get(kind);
    if (!found) {
      found = Array.from({ length: SHADES }, (_, at) => kindColour(kind, theme, at / (SHADES - 1)));
      shades.set(kind, found);
    }
    return found;
  };
  // Names are many, modules are few.
  const modules = new Map<string, string>();
  const ofModule = (module: string) => {
    const found = modules.get(module) ?? moduleColour(module, theme);
    modules.set(module, found);
    return found;
  };
  const families = new Map<string, string[]>();
  const ofFamily = (module: string) => {
    let found = families.get(module);
    if (!found) {
      found = Array.from({ length: SHADES }, (_, at) => nativeColour(module, theme, at / (SHADES - 1)));
      families.set(module, found);
    }
    return found;
  };
  return names.text.map((text, id) => {
    const kind = names.kind[id];
    if (isGroup(kind) || kind === KIND.synthetic) return kindColour(kind, theme);
    if (by === 'module') return ofModule(names.module[id]);
    const shade = hash(text) % SHADES;
    return kind === KIND.native ? ofFamily(names.module[id])[shade] : shadesOf(kind)[shade];
  });
}

/** Steps of a diff's scale to either side. */
export const DIFF_STEPS = 12;

/** Changes of a share below this are hardly coloured, whatever they are of themselves. */
const DELTA_FULL = 0.004;

/** Where a change stands on the scale: −DIFF_STEPS (less) … DIFF_STEPS (more). */
export function diffStep(change: Change): number {
  const size = Math.abs(change.relative) ** 0.6 * Math.min(1, Math.abs(change.delta) / DELTA_FULL) ** 0.5;
  return Math.sign(change.relative) * Math.round(size * DIFF_STEPS);
}

/** Red is more, blue is less: told apart with every kind of colour blindness. */
export function diffColour(step: number, theme: Theme): string {
  const strength = Math.abs(step) / DIFF_STEPS;
  if (step === 0) return `hsl(220 8% ${dimmed(86, theme)}%)`;
  const [hue, lightness] = step > 0 ? [6, 88 - 24 * strength] : [213, 88 - 24 * strength];
  return `hsl(${hue} ${30 + 50 * strength}% ${dimmed(lightness, theme).toFixed(1)}%)`;
}
