// What is done to stacks before they are drawn: one after another, each of which can be taken back
// alone. The collector is not asked again.

import { KIND } from '../query/outcome';
import type { NameTable, Names } from './names';

/**
 * `focus`: only stacks with the function; `exclude`: only those without it; `merge`: the function's
 * frame is removed, and what it called belongs to its caller; `recursion`: between its first and
 * its last frame of a stack nothing is shown; `library`: frames of a module in a row are one.
 */
export type TransformOp = 'focus' | 'exclude' | 'merge' | 'recursion' | 'library';

export interface Transform {
  op: TransformOp;
  /** A function; of `library` the path of a module. */
  name: string;
}

/** Most of them at once: each is looked at for each frame. */
export const TRANSFORMS_MAX = 30;

const OPS: readonly TransformOp[] = ['focus', 'exclude', 'merge', 'recursion', 'library'];

/** How a transform stands in an address; empty: it is none. */
export function readTransform(text: string): Transform[] {
  const colon = text.indexOf(':');
  const op = OPS.find((one) => one === text.slice(0, colon));
  return op && colon + 1 < text.length ? [{ op, name: text.slice(colon + 1) }] : [];
}

export const writeTransform = ({ op, name }: Transform) => `${op}:${name}`;

/** The list with one more at its end; one that is there already moves there. */
export function withTransform(list: readonly Transform[], added: Transform): Transform[] {
  const rest = list.filter((one) => one.op !== added.op || one.name !== added.name);
  return [...rest, added].slice(-TRANSFORMS_MAX);
}

/** Words of a chip before the name. */
export const TRANSFORM_WORDS: Record<TransformOp, string> = {
  focus: 'contains',
  exclude: 'without',
  merge: 'merged',
  recursion: 'recursion folded',
  library: 'library folded',
};

/** Kind of the frame that stands for the frames before the program's own. */
export const KIND_START = 253;

const START_NATIVE =
  /^(_start|main|__libc_start_(main|call_main)(_impl)?(@.*)?|(__GI_)?(__)?clone3?(@.*)?|start_thread(@.*)?|std::rt::lang_start(_internal)?(::.*)?|std::sys::(backtrace|thread_local|thread|pal|unix|sys_common).*(__rust_begin_short_backtrace|thread_start)(::.*)?|runtime\.(goexit|main|rt0_go|mstart|mstart0|mstart1)(\.abi0)?|thread_native_entry\(Thread\*\)|JavaThread::thread_main_inner\(\))$/;
const START_KERNEL = /^(ret_from_fork(_asm)?|kthread)$/;

/** True for a frame that only starts a program or a thread, of no use to who looks for time. */
export function isStart(text: string, kind: number): boolean {
  if (kind === KIND.kernel) return START_KERNEL.test(text);
  return (kind === KIND.native || kind === KIND.inlined) && START_NATIVE.test(text);
}

/** True when a function of this name can be one of the frames that are folded. */
export const canBeStart = (text: string) => START_NATIVE.test(text) || START_KERNEL.test(text);

/** What transforms do to one frame: its name, or that it goes away. */
export interface FrameChanges {
  /** By name id: what it is shown as; {@link GONE}: it is not. Absent: every frame stays. */
  shown: Uint32Array | undefined;
  /** By the name that is shown: 1 where a run of it is one frame. */
  run: Uint8Array | undefined;
  /** By the name that is shown: 1 where all between its first and last frame goes. */
  recursion: Uint8Array | undefined;
}

export const GONE = 0xffffffff;

/** Worked out once for all names. `names` gets those of folded libraries. */
export function frameChanges(names: Names, transforms: readonly Transform[]): FrameChanges {
  const libraries = new Map<number, number>();
  const known = names.length;
  transforms.forEach(({ op, name }, at) => {
    if (op === 'library') libraries.set(at, names.intern(baseName(name), name, kindOf(names, name)));
  });
  const changes: FrameChanges = { shown: undefined, run: undefined, recursion: undefined };
  if (!transforms.some(({ op }) => op !== 'focus' && op !== 'exclude')) return changes;
  const shown = Uint32Array.from({ length: names.length }, (_, id) => id);
  const run = new Uint8Array(names.length);
  const recursion = new Uint8Array(names.length);
  transforms.forEach(({ op, name }, at) => {
    for (let id = 1; id < known; id++) {
      if (shown[id] === GONE) continue;
      if (op === 'merge' && names.text[shown[id]] === name) shown[id] = GONE;
      if (op === 'library' && names.module[id] === name && names.kind[id] !== KIND.synthetic)
        shown[id] = libraries.get(at) ?? id;
      if (op === 'recursion' && names.text[shown[id]] === name) recursion[shown[id]] = 1;
    }
  });
  for (const id of libraries.values()) run[id] = 1;
  return { shown, run, recursion };
}

export const baseName = (path: string) => path.slice(path.lastIndexOf('/') + 1) || path;

/** A library is drawn as what it is made of. */
function kindOf(names: NameTable, module: string): number {
  const id = names.module.findIndex((one, at) => one === module && names.kind[at] !== KIND.synthetic);
  return id < 0 ? KIND.native : names.kind[id];
}
