// What can be done with a frame: the same in its panel, its menu and by keys.

import { KIND } from '../query/outcome';
import { getState, setState } from '../state/store';
import type { NameTable } from './names';
import { escapeRegex } from './search';
import { KIND_START, type TransformOp, baseName, withTransform } from './transforms';
import { KIND_LABEL } from './tree';

export interface FrameAction {
  id: string;
  label: string;
  /** What it does, in a sentence. */
  title: string;
  keys?: string;
  /** It is one of the few that the panel shows at once. */
  main?: boolean;
  run: () => void;
}

/** Adds a transform to those of the address. */
export function transform(op: TransformOp, name: string): void {
  setState({ transforms: withTransform(getState().transforms, { op, name }) });
}

/** The actions of a frame by its name id; none for the root. */
export function actionsOf(names: NameTable, id: number): FrameAction[] {
  const [name, module, kind] = [names.text[id], names.module[id], names.kind[id]];
  const copy: FrameAction = {
    id: 'copy',
    label: 'Copy name',
    title: 'Copy the full name',
    run: () => void navigator.clipboard?.writeText(name).catch(() => undefined),
  };
  if (id === 0) return [];
  if (kind === KIND_START)
    return [
      {
        id: 'start',
        label: 'Show start frames',
        title: 'Show each of the frames that start programs and threads',
        main: true,
        run: () => setState({ start: true }),
      },
    ];
  if (kind === KIND_LABEL) return [copy];
  const actions: FrameAction[] = [
    {
      id: 'focus',
      label: 'Focus',
      title: 'Only stacks with this function',
      keys: 'f',
      main: true,
      run: () => transform('focus', name),
    },
    {
      id: 'callers',
      label: 'Callers & callees',
      title: 'Graphs of what calls this function, and of what it calls',
      keys: 's',
      main: true,
      run: () => setState({ fn: name }),
    },
    {
      id: 'exclude',
      label: 'Exclude',
      title: 'Leave out stacks with this function',
      keys: 'x',
      main: true,
      run: () => transform('exclude', name),
    },
    {
      id: 'highlight',
      label: 'Highlight all',
      title: 'Highlight all frames of this function',
      main: true,
      run: () => setState({ search: `^${escapeRegex(name)}$`, regex: true }),
    },
    {
      id: 'merge',
      label: 'Merge into callers',
      title: 'Remove this frame: what it calls belongs to its callers',
      keys: 'u',
      run: () => transform('merge', name),
    },
    {
      id: 'recursion',
      label: 'Fold its recursion',
      title: 'Leave out what is between the first and the last frame of this function in a stack',
      keys: 'c',
      run: () => transform('recursion', name),
    },
  ];
  if (module !== '' && kind !== KIND.synthetic)
    actions.push({
      id: 'library',
      label: `Fold library ${baseName(module).slice(0, 40)}`,
      title: 'Show frames of this module that follow each other as one',
      keys: 'l',
      run: () => transform('library', module),
    });
  return [...actions, copy];
}
