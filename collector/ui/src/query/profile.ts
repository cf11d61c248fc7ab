// Puts a profile together from the chunks of an answer, and checks them as an attacker's.

import type { DataQuality, ProfileResponse } from '../gen/fleetprof/collector/v1/query_pb';
import type { Coverage, Info, ProfileChunk, Quality } from '../gen/fleetprof/profile/v1/profile_pb';
import { ProfileError, below, bound, bytes, floats, words } from './columns';
import { type Timestamps, TimestampsBuilder } from './timestamps';
import { baseOf, rebase } from './unit';

export { ProfileError } from './columns';

/**
 * Most stacks taken. The server folds beyond 200,000 by default; more than this would freeze the
 * page.
 */
export const NODES_MAX = 2_000_000;

/** Most samples (stack × labels × end) taken. */
export const SAMPLES_MAX = 4_000_000;

/** Most strings taken. */
export const STRINGS_MAX = 2_000_000;

/** A profile in columns. Ids are dense; stack 0 is the empty stack, label set 0 the empty set. */
export interface Profile {
  strings: string[];
  /** By frame id. */
  kind: Uint8Array;
  unnamed: Uint8Array;
  fn: Uint32Array;
  /** The function as its runtime spells it; 0 where that is the function. */
  systemName: Uint32Array;
  module: Uint32Array;
  file: Uint32Array;
  line: Uint32Array;
  /** By stack id; of stack 0 nothing means anything. */
  parent: Uint32Array;
  frame: Uint32Array;
  /** String ids of keys and values, alternating. */
  labelSets: Uint32Array[];
  /** By sample. */
  labels: Uint32Array;
  stack: Uint32Array;
  end: Uint8Array;
  count: Float64Array;
  weight: Float64Array;
  unit: string;
  quality: DataQuality | undefined;
  about: About;
  /** Undefined: no times were kept. */
  timestamps: Timestamps | undefined;
}

/** Facts of the profile as a whole, as its own first chunk tells them. */
export interface About {
  startUnixNs: bigint;
  durationNs: bigint;
  /** `cpu-clock`, `off-cpu`. */
  event: string;
  period: bigint;
  sampling: Quality | undefined;
  coverage: Coverage | undefined;
}

/** Takes chunks in order. */
export class Assembler {
  private readonly strings: string[] = [];
  private readonly kind = bytes();
  private readonly unnamed = bytes();
  private readonly fn = words();
  private readonly systemName = words();
  private readonly module = words();
  private readonly file = words();
  private readonly line = words();
  private readonly parent = words();
  private readonly frame = words();
  private readonly labelSets: Uint32Array[] = [new Uint32Array()];
  private readonly labels = words();
  private readonly stack = words();
  private readonly end = bytes();
  private readonly count = floats();
  private readonly weight = floats();
  private readonly timestamps = new TimestampsBuilder();
  private unit = '';
  /** What weights are multiplied by to be in `unit`. */
  private by = 1;
  private about: About = {
    startUnixNs: 0n,
    durationNs: 0n,
    event: '',
    period: 0n,
    sampling: undefined,
    coverage: undefined,
  };
  private last = false;
  private quality: DataQuality | undefined;

  constructor() {
    this.parent.push(0);
    this.frame.push(0);
  }

  /** Stacks so far, for showing progress. */
  get stacks(): number {
    return this.parent.length - 1;
  }

  /**
   * Takes one message.
   * @throws ProfileError when it contradicts itself or those before.
   */
  add(message: ProfileResponse): void {
    if (message.quality) {
      this.quality = message.quality;
      rebase(this.quality);
    }
    if (message.chunk) this.addChunk(message.chunk);
  }

  /** True when the last chunk has come. */
  get complete(): boolean {
    return this.last;
  }

  /**
   * Takes one chunk.
   * @throws ProfileError as `add`.
   */
  addChunk(chunk: ProfileChunk): void {
    if (this.last) throw new ProfileError('a chunk follows the last one');
    if (chunk.info) this.addInfo(chunk.info);
    bound(this.strings.length + chunk.strings.length, STRINGS_MAX, 'strings');
    for (const text of chunk.strings) this.strings.push(text);
    this.addFrames(chunk);
    this.addStacks(chunk);
    for (const set of chunk.labelSets) {
      if (set.keyValues.length % 2) throw new ProfileError('a label without a value');
      for (const id of set.keyValues) below(id, this.strings.length, 'string');
      this.labelSets.push(Uint32Array.from(set.keyValues));
    }
    this.addSamples(chunk);
    this.timestamps.add(chunk, { labelSets: this.labelSets.length, stacks: this.parent.length });
    this.last = chunk.last;
  }

  private addInfo(info: Info): void {
    const { unit, startUnixNs, durationNs, event, period, quality, coverage } = info;
    const base = baseOf(unit);
    [this.unit, this.by] = [base.unit, base.by];
    this.about = { startUnixNs, durationNs, event, period: period * BigInt(base.by), sampling: quality, coverage };
    if (info.times) this.timestamps.begin(info.times);
  }

  private addFrames(chunk: ProfileChunk): void {
    const strings = this.strings.length;
    bound(this.fn.length + chunk.frames.length, NODES_MAX, 'frames');
    for (const frame of chunk.frames) {
      this.kind.push(Math.min(frame.kind, 255));
      this.unnamed.push(Math.min(frame.unnamed, 255));
      this.fn.push(below(frame.function, strings, 'string'));
      this.systemName.push(below(frame.systemName, strings, 'string'));
      this.module.push(below(frame.module, strings, 'string'));
      this.file.push(below(frame.file, strings, 'string'));
      this.line.push(frame.line);
    }
  }

  private addStacks(chunk: ProfileChunk): void {
    const [parents, frames] = [chunk.stackParents, chunk.stackFrames];
    if (parents.length !== frames.length) throw new ProfileError('stacks without frames');
    bound(this.parent.length + parents.length, NODES_MAX, 'stacks');
    this.parent.reserve(parents.length);
    this.frame.reserve(parents.length);
    for (let at = 0; at < parents.length; at++) {
      // A parent before its child: every walk towards the root ends.
      this.parent.push(below(parents[at], this.parent.length, 'stack'));
      this.frame.push(below(frames[at], this.fn.length, 'frame'));
    }
  }

  private addSamples(chunk: ProfileChunk): void {
    const rows = chunk.sampleStacks.length;
    const { sampleLabelSets, sampleStacks, sampleEnds, sampleCounts, sampleWeights } = chunk;
    if ([sampleLabelSets, sampleEnds, sampleCounts, sampleWeights].some((column) => column.length !== rows)) {
      throw new ProfileError('columns of samples differ in length');
    }
    bound(this.stack.length + rows, SAMPLES_MAX, 'samples');
    for (let at = 0; at < rows; at++) {
      this.labels.push(below(sampleLabelSets[at], this.labelSets.length, 'label set'));
      this.stack.push(below(sampleStacks[at], this.parent.length, 'stack'));
      this.end.push(Math.min(sampleEnds[at], 255));
      this.count.push(Number(sampleCounts[at]));
      this.weight.push(Number(sampleWeights[at]) * this.by);
    }
  }

  /**
   * The profile.
   * @throws ProfileError when the last chunk never came.
   */
  finish(): Profile {
    if (!this.last) throw new ProfileError('the answer is incomplete');
    return {
      strings: this.strings,
      kind: this.kind.finish(),
      unnamed: this.unnamed.finish(),
      fn: this.fn.finish(),
      systemName: this.systemName.finish(),
      module: this.module.finish(),
      file: this.file.finish(),
      line: this.line.finish(),
      parent: this.parent.finish(),
      frame: this.frame.finish(),
      labelSets: this.labelSets,
      labels: this.labels.finish(),
      stack: this.stack.finish(),
      end: this.end.finish(),
      count: this.count.finish(),
      weight: this.weight.finish(),
      unit: this.unit || this.quality?.unit || '',
      quality: this.quality,
      about: this.about,
      timestamps: this.timestamps.finish(),
    };
  }
}
