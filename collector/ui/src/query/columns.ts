// What a profile is put together from: columns that grow, and the checks of what strangers put into
// them.

/** What is wrong with an answer. */
export class ProfileError extends Error {
  override name = 'ProfileError';
}

/** Typed arrays that grow. */
export class Column<T extends Uint8Array | Uint32Array | Float64Array> {
  length = 0;
  constructor(
    private data: T,
    private readonly make: (length: number) => T,
  ) {}

  reserve(more: number): void {
    if (this.length + more <= this.data.length) return;
    const larger = this.make(Math.max(this.data.length * 2, this.length + more, 64));
    larger.set(this.data as never);
    this.data = larger;
  }

  push(value: number): void {
    if (this.length === this.data.length) this.reserve(1);
    this.data[this.length++] = value;
  }

  at(index: number): number {
    return this.data[index];
  }

  finish(): T {
    return this.data.slice(0, this.length) as T;
  }
}

export const bytes = () => new Column(new Uint8Array(64), (length) => new Uint8Array(length));
export const words = () => new Column(new Uint32Array(64), (length) => new Uint32Array(length));
export const floats = () => new Column(new Float64Array(64), (length) => new Float64Array(length));

/** The id, when it is in a table of this length. */
export function below(id: number, end: number, what: string): number {
  if (id >= end) throw new ProfileError(`${what} ${id} of ${end}`);
  return id;
}

/** Refuses more than there is room for. */
export function bound(count: number, most: number, what: string): void {
  if (count > most)
    throw new ProfileError(`more than ${most.toLocaleString('en')} ${what}: narrow the selection or the time range`);
}
