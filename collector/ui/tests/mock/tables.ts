// The tables of a profile as its messages have them.

import type { Stack } from './stacks';

/** Tables of a profile, each entry once. */
export class Tables {
  private readonly strings = new Map<string, number>([['', 0]]);
  private readonly frames = new Map<string, number>();
  private readonly frameRows: {
    kind: number;
    unnamed: number;
    function: number;
    module: number;
    file: number;
    line: number;
  }[] = [];
  private readonly nodes = new Map<string, number>();
  private readonly stacks = new Map<Stack, number>();
  private readonly parents: number[] = [];
  private readonly stackFrames: number[] = [];
  private readonly sets = new Map<string, number>([['[]', 0]]);
  private readonly known = new Map<Record<string, string>, number>();

  private string(text: string): number {
    const id = this.strings.get(text) ?? this.strings.size;
    this.strings.set(text, id);
    return id;
  }

  /** A table is of one answer: its sets are all by the same labels. */
  labels(labels: Record<string, string>, groupBy: readonly string[]): number {
    const done = this.known.get(labels);
    if (done !== undefined) return done;
    const pairs = groupBy
      .filter((label) => labels[label])
      .flatMap((label) => [this.string(label), this.string(labels[label])]);
    const key = JSON.stringify(pairs);
    const id = this.sets.get(key) ?? this.sets.size;
    this.sets.set(key, id);
    this.known.set(labels, id);
    return id;
  }

  stack(stack: Stack): number {
    const done = this.stacks.get(stack);
    if (done !== undefined) return done;
    let node = 0;
    for (const [kind, module, fn] of stack.frames) {
      const key = `${kind} ${module} ${fn}`;
      let frame = this.frames.get(key);
      if (frame === undefined) {
        frame = this.frameRows.length;
        this.frames.set(key, frame);
        const source = kind === 0 && module.endsWith('api-server');
        this.frameRows.push({
          kind,
          unnamed: fn === '[unknown]' ? 1 : 0,
          function: this.string(fn),
          module: this.string(module),
          file: source ? this.string(`src/${fn.split('::')[1] ?? 'lib'}.rs`) : 0,
          line: source ? 1 + ((fn.length * 37) % 900) : 0,
        });
      }
      const place = `${node} ${frame}`;
      const known = this.nodes.get(place);
      if (known === undefined) {
        this.parents.push(node);
        this.stackFrames.push(frame);
        node = this.parents.length;
        this.nodes.set(place, node);
      } else node = known;
    }
    this.stacks.set(stack, node);
    return node;
  }

  wire() {
    return {
      strings: [...this.strings.keys()],
      frames: this.frameRows,
      stackParents: this.parents,
      stackFrames: this.stackFrames,
      labelSets: [...this.sets.keys()].slice(1).map((key) => ({ keyValues: JSON.parse(key) as number[] })),
    };
  }
}
