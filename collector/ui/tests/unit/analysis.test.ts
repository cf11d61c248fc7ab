import { create } from '@bufbuild/protobuf';
import { Code, ConnectError } from '@connectrpc/connect';
import { describe, expect, test, vi } from 'vitest';
import { BUILD } from '../../src/analysis/build';
import { Analysis, PINGS_UNANSWERED, PING_MS, type Port } from '../../src/analysis/client';
import { Engine, PROFILES_MAX } from '../../src/analysis/engine';
import { packNames, unpackNames } from '../../src/analysis/names';
import type { FromWorker, GraphRequest, LoadedProfile } from '../../src/analysis/protocol';
import { type Collector, CollectorService } from '../../src/analysis/collectorService';
import { buffersOf } from '../../src/analysis/service';
import { Turns, WAITING_MAX } from '../../src/analysis/turns';
import { layOut } from '../../src/flame/layout';
import { Names } from '../../src/flame/names';
import { sandwich } from '../../src/flame/sandwich';
import { buildTree, functionRows } from '../../src/flame/tree';
import { type ProfileResponse, ProfileResponseSchema } from '../../src/gen/fleetprof/collector/v1/query_pb';
import { NOT_HELD, type Trouble, TroubleError, troubleOf } from '../../src/query/errors';
import { Assembler, type Profile } from '../../src/query/profile';
import { between } from '../../src/query/timestamps';
import { asked, profile as answersOf } from '../mock/answers';
import { messageOf } from '../../src/query/selection';

// The mock has data of the last hours.
const TO = Math.floor(Date.now() / 60_000) * 60_000 - 20 * 60_000;
const RANGE = { from: TO - 60_000, to: TO };
const SELECTION = { range: RANGE, query: '', filters: [] };
const OPTIONS: GraphRequest['options'] = { measure: 'weight', collapse: false, transforms: [], root: '' };

/** Messages of the mock for a selector. */
const messages = (query: string) => [...answersOf(asked(messageOf({ ...SELECTION, query })), ['host'])];

function assembled(query: string): Profile {
  const assembler = new Assembler();
  for (const message of messages(query)) assembler.add(message);
  return assembler.finish();
}

/** A collector that answers from the mock, and counts whom it still answers. */
function collector(answers: (query: string) => Iterable<ProfileResponse> = messages) {
  const seen = { open: 0, aborted: 0 };
  const fake: Collector = {
    async *profile(request, { signal }) {
      seen.open++;
      signal?.addEventListener('abort', () => seen.aborted++);
      for (const message of answers((request as { selection: { selector: string } }).selection.selector)) {
        await new Promise((resolve) => setTimeout(resolve));
        if (signal?.aborted) throw new ConnectError('left', Code.Canceled);
        yield message;
      }
    },
    async *capture() {},
    async *kept() {},
    async *pin() {},
    async *evidence() {},
  };
  return { fake, seen };
}

/**
 * The page and the worker, with messages as between threads: what is transferred is gone at its
 * sender.
 */
function linked(fake = collector().fake, builds: { page?: string; worker?: string } = {}) {
  let service: CollectorService;
  const port: Port = {
    onmessage: null,
    onerror: null,
    onmessageerror: null,
    postMessage: (message) => {
      const copy = structuredClone(message);
      setTimeout(() => service.take(copy));
    },
    terminate: () => undefined,
  };
  service = new CollectorService(
    (message, transfer) => {
      const data = structuredClone(message, { transfer }) as FromWorker;
      setTimeout(() => port.onmessage?.({ data }));
    },
    () => fake,
    builds.worker,
  );
  return {
    analysis: new Analysis(
      () => port,
      () => 'http://here',
      builds.page,
    ),
    service,
    port,
  };
}

const never = () => new AbortController().signal;

async function troubleIn(promise: Promise<unknown>): Promise<Trouble | undefined> {
  return promise.then(
    () => expect.fail('it should fail'),
    (error: unknown) => troubleOf(error),
  );
}

/** Waits until messages that are on their way have arrived. */
const arrived = () => new Promise((resolve) => setTimeout(resolve, 20));

describe('the worker', () => {
  test('loads a profile and makes of it what the page made before', async () => {
    const { analysis } = linked();
    const [whole, stacks] = [assembled(''), [] as number[]];
    const profile = await analysis.load(SELECTION, 'host', never(), (value) => stacks.push(value));
    expect(profile).toMatchObject({ unit: whole.unit, rows: whole.stack.length, hasLines: true });
    expect(profile.labels).toContain('host');
    expect(profile.quality?.totalWeight).toBe(whole.quality?.totalWeight);
    expect(stacks.at(-1)).toBe(whole.parent.length - 1);

    const tree = buildTree(new Names(), whole, OPTIONS);
    const graph = await analysis.graph({ of: { id: profile.id }, options: OPTIONS }, never());
    const { tree: values, ...columns } = graph.layout;
    const { tree: _, ...expected } = layOut(tree);
    for (const [key, value] of Object.entries(expected))
      expect([key, [columns[key as keyof typeof columns]].flat()]).toEqual([key, [value].flat()]);
    expect([...values.names.text]).toEqual(tree.names.text);
    expect(values.own[0]).toEqual(tree.own[0]);
    expect(values.total[1]).toHaveLength(0);
    const rows = functionRows(tree).sort((left, right) => right.total - left.total);
    expect([...(graph.functions?.name ?? [])]).toEqual(rows.map((row) => row.name));

    const fn = tree.names.text[rows[3].name];
    const halves = sandwich(tree, fn);
    const graphs = await analysis.sandwich(graph, fn, never());
    expect([graphs.total, graphs.own]).toEqual([halves.total, halves.own]);
    expect([...graphs.callees.layout.width]).toEqual([...layOut(halves.callees).width]);
    expect(graphs.callers.layout.tree.names).toBe(graph.layout.tree.names);
  });

  test('compares two profiles, and measures them anew without another tree', async () => {
    const { analysis } = linked();
    const [before, after] = [
      await analysis.load(SELECTION, '', never()),
      await analysis.load({ ...SELECTION, query: 'host="web-1"' }, '', never()),
    ];
    const request = (width: 'both' | 'after'): GraphRequest => ({
      of: { id: after.id },
      options: OPTIONS,
      diff: { before: { id: before.id }, rates: [2, 3], compare: 'share', width },
    });
    const graph = await analysis.graph(request('both'), never());
    expect(graph.functions).toBeUndefined();
    expect(graph.layout.tree.rates).toEqual([2, 3]);
    expect(graph.change?.steps).toHaveLength(graph.layout.name.length);
    const narrow = await analysis.graph(request('after'), never());
    expect(narrow.layout.name.length).toBeLessThan(graph.layout.name.length);
    expect(narrow.layout.whole).toBe(narrow.layout.tree.total[1][0]);
  });

  test('shows parts of the time', async () => {
    const { analysis } = linked();
    const query = 'scenario="timestamps"';
    const profile = await analysis.load({ ...SELECTION, query }, '', never());
    const whole = assembled(query);
    if (!whole.timestamps) throw new Error('no timestamps');
    const pick = { from: 7e9, until: 8e9 };
    const part = between(whole, whole.timestamps, pick);
    const sum = (values: Float64Array) => values.reduce((total, value) => total + value, 0);
    expect(await analysis.span({ id: profile.id, pick }, never())).toEqual({
      count: sum(part.count),
      weight: sum(part.weight),
    });
    const of = { id: profile.id, pick };
    expect((await analysis.sums({ of, by: 'module', samples: true }, never())).whole).toBe(sum(part.count));
    const graph = await analysis.graph({ of, options: { ...OPTIONS, measure: 'count' } }, never());
    expect(graph.layout.whole).toBe(sum(part.count));
    const file = await analysis.file({ of, kind: 'json', samples: false }, never());
    expect(JSON.parse(await file.text()).timestamps.sample).toHaveLength(sum(part.count));
    const { grid } = await analysis.grid(profile.id, never());
    expect(sum(grid.count)).toBe(whole.timestamps.at.length);
  });

  test('tells what went wrong in the words of the page', async () => {
    const broken = collector(() => [create(ProfileResponseSchema, { chunk: { sampleStacks: [9] } })]);
    const { analysis } = linked(broken.fake);
    expect(await troubleIn(analysis.load(SELECTION, '', never()))).toMatchObject({ code: 'bad_answer' });
    expect(broken.seen.aborted).toBe(1);
    const endless = linked(collector(() => []).fake).analysis;
    expect(await troubleIn(endless.load(SELECTION, '', never()))).toMatchObject({
      code: 'bad_answer',
      detail: 'the answer is incomplete',
    });
    const failing = linked({
      // biome-ignore lint/correctness/useYield: it fails before it has anything.
      profile: async function* () {
        throw new ConnectError('narrow it', Code.ResourceExhausted);
      },
      capture: async function* () {},
      kept: async function* () {},
      pin: async function* () {},
      evidence: async function* () {},
    }).analysis;
    expect(await troubleIn(failing.load(SELECTION, '', never()))).toMatchObject({
      code: 'ResourceExhausted',
      detail: 'narrow it',
    });
    const gone = { of: { id: 1 }, options: OPTIONS };
    expect(await troubleIn(analysis.graph(gone, never()))).toMatchObject({ code: NOT_HELD, retry: false });
  });

  test('ends a load that is not wanted any more, at the collector too', async () => {
    const { fake, seen } = collector();
    const { analysis, service } = linked(fake);
    const control = new AbortController();
    const load = analysis.load(SELECTION, '', control.signal);
    await new Promise((resolve) => setTimeout(resolve, 5));
    control.abort();
    expect(await troubleIn(load)).toBeUndefined();
    await arrived();
    expect([seen.open, seen.aborted, service.engine.size]).toEqual([1, 1, 0]);
  });

  test('releases a profile that comes after nobody waits for it', async () => {
    const { analysis, service, port } = linked();
    const control = new AbortController();
    const load = analysis.load(SELECTION, '', control.signal);
    const take = port.onmessage;
    port.onmessage = (event) => {
      // On its way when the page gives up.
      if ('answer' in event.data) control.abort();
      take?.(event);
    };
    expect(await troubleIn(load)).toBeUndefined();
    await arrived();
    expect(service.engine.size).toBe(0);
  });

  test('makes no graph that is superseded while it waits', async () => {
    const { analysis, service } = linked();
    const profile = await analysis.load(SELECTION, '', never());
    let made = 0;
    const graph = service.engine.graph.bind(service.engine);
    service.engine.graph = (request, stage) => {
      made++;
      return graph(request, stage);
    };
    const control = new AbortController();
    const old = ['a', 'b', 'c'].map((focus) =>
      troubleIn(
        analysis.graph(
          { of: { id: profile.id }, options: { ...OPTIONS, transforms: [{ op: 'focus', name: focus }] } },
          control.signal,
        ),
      ),
    );
    control.abort();
    const newest = await analysis.graph({ of: { id: profile.id }, options: OPTIONS }, never());
    expect(await Promise.all(old)).toEqual([undefined, undefined, undefined]);
    expect(newest.layout.whole).toBeGreaterThan(0);
    expect(made).toBe(1);
  });

  test('that dies is told of, and started again', async () => {
    const { analysis, port } = linked();
    const load = analysis.load(SELECTION, '', never());
    port.onerror?.({});
    expect(await troubleIn(load)).toMatchObject({ code: 'worker', retry: true });
    expect((await analysis.load(SELECTION, '', never())).rows).toBeGreaterThan(0);
  });

  test('that dies has its profiles loaded again: once at once, then when they are asked for', async () => {
    const { analysis, port, service } = linked();
    let lost = 0;
    analysis.onLoss(() => lost++);
    const first = await analysis.load(SELECTION, '', never());
    port.onerror?.({});
    expect([analysis.reloads, lost]).toEqual([1, 1]);
    service.engine.release(first.id);
    const graph = (id: number) => troubleIn(analysis.graph({ of: { id }, options: OPTIONS }, never()));
    // It is being loaded again already.
    expect(await graph(first.id)).toMatchObject({ code: NOT_HELD });
    expect(analysis.reloads).toBe(1);

    const second = await analysis.load(SELECTION, '', never());
    port.onerror?.({});
    expect([analysis.reloads, lost]).toEqual([1, 2]);
    service.engine.release(second.id);
    expect(await graph(second.id)).toMatchObject({ code: NOT_HELD });
    expect(analysis.reloads).toBe(2);

    const third = await analysis.load(SELECTION, '', never());
    analysis.release(third);
    expect(await graph(third.id)).toMatchObject({ code: NOT_HELD });
    expect(analysis.reloads).toBe(2);
  });

  test('of another build than the page answers nothing, and says what to do', async () => {
    const { analysis } = linked(collector().fake, { page: 'a', worker: 'b' });
    expect(await troubleIn(analysis.load(SELECTION, '', never()))).toMatchObject({
      code: 'other_build',
      advice: 'Reload the page.',
    });
  });

  test('refuses an operation that it does not know', async () => {
    const heard: FromWorker[] = [];
    const service = new CollectorService((message) => heard.push(message));
    service.take({ build: BUILD });
    service.take({ number: 1, operation: 'paint' } as never);
    await arrived();
    expect(heard).toMatchObject([{ number: 1, trouble: { detail: 'unknown operation "paint"' } }]);
  });

  test('whose answer cannot be read is told of', async () => {
    const { analysis, port } = linked();
    const load = analysis.load(SELECTION, '', never());
    port.onmessageerror?.({});
    expect(await troubleIn(load)).toMatchObject({ code: 'worker' });
  });

  test('that says nothing is told of, and another takes its place', async () => {
    vi.useFakeTimers();
    try {
      const ports: Port[] = [];
      const start = (): Port => {
        const port: Port = {
          onmessage: null,
          onerror: null,
          onmessageerror: null,
          postMessage: () => undefined,
          terminate: vi.fn(),
        };
        ports.push(port);
        return port;
      };
      const analysis = new Analysis(start, () => 'http://here');
      const heard: boolean[] = [];
      analysis.onSilence(() => heard.push(analysis.isSilent));
      const load = analysis.load(SELECTION, '', never());
      // A word of any kind is enough.
      vi.advanceTimersByTime(PINGS_UNANSWERED * PING_MS);
      ports[0].onmessage?.({ data: { number: 1, progress: 7 } });
      vi.advanceTimersByTime(PINGS_UNANSWERED * PING_MS);
      expect(heard).toEqual([]);
      vi.advanceTimersByTime(PING_MS);
      expect(heard).toEqual([true]);
      // It went on after all.
      ports[0].onmessage?.({ data: { number: 3, pong: true } });
      expect(heard).toEqual([true, false]);
      vi.advanceTimersByTime((PINGS_UNANSWERED + 1) * PING_MS);
      let reloads = 0;
      analysis.onReload(() => reloads++);
      analysis.restart();
      expect(heard).toEqual([true, false, true, false]);
      expect(await troubleIn(load)).toMatchObject({ code: 'worker' });
      expect([reloads, vi.mocked(ports[0].terminate).mock.calls.length]).toEqual([1, 1]);
      // By hand it is done as often as it is asked for; nothing is asked for now.
      analysis.restart();
      expect(reloads).toBe(2);
      expect(vi.getTimerCount()).toBe(0);
      void analysis.load(SELECTION, '', never()).catch(() => undefined);
      expect(ports).toHaveLength(2);
    } finally {
      vi.useRealTimers();
    }
  });

  test('answers a ping while it waits for a collector', async () => {
    const heard: FromWorker[] = [];
    const service = new CollectorService((message) => heard.push(message));
    service.take({ ping: 5 });
    expect(heard).toEqual([{ number: 5, pong: true }]);
  });

  test('that cannot be constructed is told of', async () => {
    const { port } = linked();
    let broken = true;
    const analysis = new Analysis(
      () => {
        if (broken) throw new Error('no workers here');
        return port;
      },
      () => 'http://here',
    );
    analysis.open();
    expect(await troubleIn(analysis.load(SELECTION, '', never()))).toMatchObject({ code: 'worker' });
    broken = false;
    expect((await analysis.load(SELECTION, '', never())).rows).toBeGreaterThan(0);
  });
});

describe('what is held', () => {
  test('is bounded: what was used longest ago goes first', async () => {
    const engine = new Engine();
    const profile = assembled('host="web-1"');
    const first = engine.add(profile);
    const others = Array.from({ length: PROFILES_MAX - 1 }, () => engine.add(profile));
    engine.lines({ of: { id: first.id }, fn: 'main', samples: true });
    engine.add(profile);
    expect(engine.size).toBe(PROFILES_MAX);
    const isHeld = ({ id }: LoadedProfile) => {
      try {
        engine.lines({ of: { id }, fn: 'main', samples: true });
        return true;
      } catch {
        return false;
      }
    };
    expect([isHeld(first), isHeld(others[0]), isHeld(others[1])]).toEqual([true, false, true]);
  });

  test('waiting computations are bounded', async () => {
    const turns = new Turns();
    const jobs = Array.from({ length: WAITING_MAX + 2 }, () => turns.run(never(), () => 1));
    const ends = await Promise.allSettled(jobs);
    expect(ends.filter((one) => one.status === 'rejected')).toHaveLength(1);
    expect(await turns.run(never(), () => 2)).toBe(2);
  });

  test('computations that are cancelled while they wait take no place', async () => {
    const turns = new Turns();
    const first = turns.run(never(), () => 1);
    const controls = Array.from({ length: WAITING_MAX }, () => new AbortController());
    const old = controls.map(({ signal }) => turns.run(signal, () => 2));
    for (const control of controls) control.abort();
    const wanted = turns.run(never(), () => 3);
    expect((await Promise.allSettled(old)).every((one) => one.status === 'rejected')).toBe(true);
    expect([await first, await wanted, await turns.run(never(), () => 4)]).toEqual([1, 3, 4]);
  });
});

test('names survive the way between threads', () => {
  const names = new Names();
  names.intern('f', '/bin/a', 0, 3, 'a.c', 7);
  names.spell(names.intern('g', '/bin/a', 2), 'LazyCompile:~g');
  const { ids: _, ...expected } = names as unknown as Record<string, unknown>;
  const packed = packNames(names);
  expect(packed.strings.filter((text) => text === '/bin/a')).toHaveLength(1);
  const back = unpackNames(packed);
  for (const [key, value] of Object.entries(expected))
    expect([key, Array.from(back[key as 'text'])]).toEqual([key, value]);
  expect(back.length).toBe(names.length);
});

test('each buffer of an answer is transferred once', () => {
  const shared = new Float64Array(4);
  const answer = {
    one: shared,
    two: shared.subarray(1),
    pair: [new Uint8Array(1), new Uint8Array(2)],
    rows: [{ x: 1 }],
  };
  expect(buffersOf(answer).map((buffer) => buffer.byteLength)).toEqual([32, 1, 2]);
  expect(buffersOf({ text: 'x', big: 1n, none: undefined, blob: new Blob(['x']) })).toEqual([]);
});

test('trouble of another thread is shown as it is', () => {
  const trouble: Trouble = { title: 't', detail: 'd', advice: 'a', retry: false, code: 'c' };
  expect(troubleOf(new TroubleError(trouble))).toBe(trouble);
});
