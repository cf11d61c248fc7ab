// What an answer is made of and what it misses, as short notes.

import type { DataQuality } from '../gen/fleetprof/collector/v1/query_pb';
import * as format from '../text/format';

export interface Note {
  text: string;
  /** What it means. */
  title: string;
  warn: boolean;
  /** What is there misleads without it. */
  bad?: boolean;
}

/** From which part on something that is missing is told as a warning. */
const WARN_FROM = { lost: 0.01, truncated: 0.1, unnamed: 0.1, folded: 0.01, pruned: 0.01, coverage: 0.95 } as const;

/** From which lost part on what is left misleads. */
const MOSTLY = 0.5;

/** Below this the kernel accounts for time that no sample has. */
export const COVERAGE_LOW = WARN_FROM.coverage;

/**
 * Part of the CPU time which the kernel measured that was sampled: the one meaning of "coverage" on
 * all pages. `takenNs` is without what was lost. What the agent took from its own samples, because
 * the kernel told nothing, says nothing and counts on neither side. Undefined: nothing was
 * measured.
 */
export function coverageOf(
  of: { takenNs: bigint; expectedNs: bigint; estimatedNs: bigint } | undefined,
): number | undefined {
  if (!of) return undefined;
  const less = (value: bigint) => Math.max(0, Number(value - of.estimatedNs));
  const measured = less(of.expectedNs);
  return measured > 0 ? less(of.takenNs) / measured : undefined;
}

/** What coverage is, for tips. */
export const COVERAGE_HINT =
  'CPU time of the samples that were not lost, divided by the CPU time in the kernel’s accounting';

/** Lost part of the samples that an answer should have; 0 when none is known. */
export function lostPart(sampling: DataQuality['sampling']): number {
  const [taken, lost] = [Number(sampling?.taken ?? 0n), Number(sampling?.lostSamples ?? 0n)];
  return lost > 0 ? lost / (taken + lost) : 0;
}

/** What must be said before anybody reads the samples: nothing where few were lost. */
export function lossOf(sampling: DataQuality['sampling'], what: string): { text: string; bad: boolean } | undefined {
  const part = lostPart(sampling);
  if (part < 0.1) return undefined;
  const [taken, lost] = [Number(sampling?.taken ?? 0n), Number(sampling?.lostSamples ?? 0n)];
  if (taken === 0) return { text: `All ${format.plural(lost, 'sample')} ${what} were lost.`, bad: true };
  const left = `The data shown comes from the ${format.plural(taken, 'sample')} that ${taken === 1 ? 'is' : 'are'} left`;
  return {
    text: `${format.percent(part)} of the samples ${what} were lost. ${left}${part >= MOSTLY ? ', and may mislead' : ''}.`,
    bad: part >= MOSTLY,
  };
}

/** The notes, the most important first. */
export function notesOf(quality: DataQuality): Note[] {
  const [hosts, alive] = [Number(quality.hosts), Number(quality.hostsAlive)];
  const notes: Note[] = [
    {
      text: format.ofSenders()
        ? `${format.count(hosts)} series`
        : `${format.count(hosts)}/${format.count(alive)} hosts`,
      title: `${format.ofSenders() ? 'Series of other senders' : 'Hosts that sent data, of all hosts online in this range'}; ${format.plural(Number(quality.windows), 'window')}`,
      warn: hosts < alive,
    },
    {
      text: `resolution ${format.duration(Number(quality.resolutionNs))}`,
      title: 'Length of the windows; the range is extended to complete windows',
      warn: false,
    },
  ];
  if (quality.gapsTotal > 0n) {
    notes.push({
      text: `${format.plural(Number(quality.gapsTotal), 'gap')}, ${format.duration(Number(quality.gapNsTotal))}`,
      title: 'Time without data from hosts that were online',
      warn: true,
    });
  }
  notes.push(...samplingNotes(quality));
  const pruned = Number(quality.prunedWeight);
  if (pruned > 0) {
    const part = pruned / Number(quality.totalWeight || 1n);
    notes.push({
      text: `${format.percent(part)} pruned`,
      title:
        'Weight of stacks that were merged into their callers to keep the answer within its limits; narrow the selection to see them',
      warn: part > WARN_FROM.pruned,
    });
  }
  const total = Number(quality.totalCount);
  for (const { source, count } of total > 0 ? quality.namedLater : []) {
    notes.push({
      text: `${format.percent(Number(count) / total)} named by ${source.slice(0, 20)}`,
      title: 'Samples whose leaf had no name on its host; the collector has the symbols',
      warn: false,
    });
  }
  if (quality.weightsCapped) {
    notes.unshift({
      text: 'weights too large',
      title:
        'Weights in this answer exceed 2⁶⁴ − 1 and were capped: totals are too small and shares too large. Use a shorter range or fewer hosts',
      warn: true,
      bad: true,
    });
  }
  if (quality.notKept.length) {
    notes.unshift({
      text: 'part of the range is missing',
      title: quality.notKept.join('; '),
      warn: true,
      bad: true,
    });
  }
  if (quality.damaged.length) {
    notes.push({
      text: `${format.plural(quality.damaged.length, 'partition')} missing`,
      title: 'Partitions that are damaged, or that the archive does not give, are missing',
      warn: true,
    });
  }
  return notes;
}

/** What the sampler missed. */
export function samplingNotes(quality: Pick<DataQuality, 'sampling' | 'coverage'>): Note[] {
  const notes: Note[] = [];
  const { sampling, coverage } = quality;
  if (sampling) {
    const taken = Number(sampling.taken);
    const part = (text: string, value: bigint, of: number, from: number, title: string, bad = 2) => {
      if (value > 0n && of > 0)
        notes.push({
          text: `${text} ${format.percent(Number(value) / of)}`,
          title,
          warn: Number(value) / of > from,
          bad: Number(value) / of >= bad,
        });
    };
    part(
      'lost',
      sampling.lostSamples,
      taken + Number(sampling.lostSamples),
      WARN_FROM.lost,
      'Estimated samples lost before their stack was read; they are counted as [lost]',
      MOSTLY,
    );
    part(
      'incomplete stacks',
      sampling.truncated,
      taken,
      WARN_FROM.truncated,
      'Samples with missing callers; they are counted as [truncated]',
    );
    part('unsymbolized', sampling.unnamed, taken, WARN_FROM.unnamed, 'Samples whose leaf frame has no symbol');
    part('folded', sampling.folded, taken, WARN_FROM.folded, 'Samples counted as [other] because a limit was reached');
  }
  const fraction = coverageOf(coverage);
  if (fraction !== undefined)
    notes.push({
      text: `coverage ${format.percent(fraction)}`,
      title: COVERAGE_HINT,
      warn: fraction < WARN_FROM.coverage,
      bad: fraction < MOSTLY,
    });
  return notes;
}

/** All numbers, for those who want them. */
export function details(quality: DataQuality): [name: string, value: string][] {
  const { sampling, coverage, unit } = quality;
  const rows: [string, string][] = [
    ['Samples', format.count(Number(quality.totalCount))],
    ['Weight', format.weight(Number(quality.totalWeight), unit)],
    ['Host windows', format.count(Number(quality.windows))],
  ];
  if (sampling) {
    const names: [string, bigint][] = [
      ['Samples taken', sampling.taken],
      ['Idle samples (excluded)', sampling.idle],
      ['Samples lost (estimate)', sampling.lostSamples],
      ['Kernel records lost', sampling.lost],
      ['Lost because the agent fell behind', sampling.lostLate],
      ['Throttle events', sampling.throttled],
      ['Incomplete stacks', sampling.truncated],
      ['… cut at the depth limit', sampling.depthLimit],
      ['Leaf not symbolized', sampling.unnamed],
      ['Grouped as [other]', sampling.folded],
      ['Damaged records, skipped', sampling.malformed],
      ['Samples at reduced quality', sampling.reduced],
    ];
    for (const [name, value] of names) rows.push([name, format.count(Number(value))]);
  }
  if (coverage && coverage.expectedNs > 0n) {
    rows.push(
      ['CPU time in the kernel’s accounting', format.duration(Number(coverage.expectedNs))],
      ['… sampled', format.duration(Number(coverage.takenNs))],
      ['… estimated, not measured', format.duration(Number(coverage.estimatedNs))],
      ['Windows without accounting', format.count(Number(coverage.windowsUnmeasured))],
    );
  }
  return rows;
}
