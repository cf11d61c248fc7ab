// The tables of the profile format that the page shows: kinds of frames, ends of stacks, reasons
// for a missing name. Ids are stable; an id that is not in a table comes from a newer agent.

export const KIND = { native: 0, kernel: 1, jit: 2, interpreted: 3, inlined: 4, synthetic: 5 } as const;

/** The kind of rows that stand for labels. */
export const KIND_NONE = 255;

export const KIND_WORDS: readonly string[] = ['native', 'kernel', 'jit', 'interpreted', 'inlined', 'synthetic'];

/** Name of the frame over stacks that are known to be cut. */
export const TRUNCATED = '[truncated]';

/** Name of the frame that has the estimated weight of lost samples. */
export const LOST = '[lost]';

/** Name of the frame that has what a bound refused. */
export const OTHER = '[other]';

/** End of the rows that stand for samples which were lost. */
export const END_LOST = 9;

/**
 * True for the frame at which the stack of a wait goes on beyond the thread that waits: who woke
 * it, whose frames follow, or that nobody was seen to.
 */
export function isWaker(name: string): boolean {
  return name.startsWith('[woken by ') || name === '[waker unseen]' || name === '[still waiting]';
}

/** True for frames that say how a thread waits: they are no place where it does. */
export function isWaitState(name: string): boolean {
  return name === '[uninterruptible]' || name === '[stopped]';
}

const COMPLETE = [0, 13, 17, 19, 20, 21];
const NOT_KNOWN = [8, END_LOST];

/** True when callers are known to be missing. */
export function isTruncated(end: number): boolean {
  return !COMPLETE.includes(end) && !NOT_KNOWN.includes(end);
}

const UNNAMED: readonly string[] = [
  '',
  'the file is stripped and no separate debug file was found',
  'the file has symbols, but none covers the address',
  'the file was gone before it could be opened',
  'the file at the path is not the one that ran',
  'the file could not be read or is damaged',
  'the address is in no known mapping of the process',
  'generated code, and the runtime writes no perf map',
  'generated code that the runtime’s perf map does not list',
  'the perf map is not a plain file of the process’s owner, or is over the size limit',
  'kernel symbols are hidden by kernel.kptr_restrict',
  'the process ended before the agent read anything about it',
  'the symbolizer reached a limit',
  'the kernel lists no symbol for the address',
  'generated code of a process that ended before its perf map was read',
  'generated code whose perf map could not be read in time',
  'generated code: the address was reused around that time, and the perf map does not tell when',
  'reading the symbols would take more memory or time than the limit for a file or its owner',
  'the caller of a function that switched to another stack and keeps no frame pointer there; the callers beyond it are known',
];

/** Words of the ends of stacks in files. */
export const END_WORDS: readonly string[] = [
  'complete',
  'depth_limit',
  'broken_chain',
  'unmapped',
  'no_user_stack',
  'copy_too_small',
  'no_unwind_info',
  'unreadable_memory',
  'unresolved',
  'lost',
  'thirty_two_bit',
  'module_loading',
  'no_progress',
  'stitched',
  'module_refused',
  'generated_code',
  'work_limit',
  'alike',
  'other_stack',
  'scanned',
  'lent_frame',
  'known_callers',
];

/** Words of the reasons for a missing name in files. */
export const UNNAMED_WORDS: readonly string[] = [
  'named',
  'no_symbols',
  'not_in_symbols',
  'file_gone',
  'file_changed',
  'file_unreadable',
  'no_mapping',
  'jit_no_map',
  'jit_not_in_map',
  'jit_map_refused',
  'kernel_hidden',
  'process_unknown',
  'limit',
  'not_in_kallsyms',
  'jit_process_gone',
  'jit_map_late',
  'jit_reused',
  'over_budget',
  'other_stack',
];

/** Why a frame has no symbol; empty when it has one. */
export function unnamedReason(id: number): string {
  return UNNAMED[id] ?? `reason ${id}, which this page does not know`;
}

const SYNTHETIC: Record<string, string> = {
  [LOST]: 'samples lost before their stack was read; the weight is an estimate',
  [TRUNCATED]: 'stacks with unknown callers: the copy of the stack ended, or the unwinder could not continue',
  [OTHER]: 'samples that were folded together because a limit was reached',
  '[unknown]': 'code without a name in an unknown file',
};

/** What a frame that is not code stands for; empty for others. */
export function syntheticMeaning(name: string): string {
  return SYNTHETIC[name] ?? '';
}
