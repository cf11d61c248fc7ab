// Pins and annotations of the fleet that is not there: a trigger that fired near the end, one of
// long ago, a deploy that was found, and notes of people.

import type { ConnectRouter } from '@connectrpc/connect';
import { Code, ConnectError } from '@connectrpc/connect';
import type { MessageInitShape } from '@bufbuild/protobuf';
import { AnnotationService, type AnnotationSchema } from '../../src/gen/fleetprof/collector/v1/annotations_pb';
import { type HostPinSchema, PinService } from '../../src/gen/fleetprof/collector/v1/pins_pb';
import { HOSTILE } from './fleet';
import { timed } from './timed';

type Pin = MessageInitShape<typeof HostPinSchema>;
type Annotation = MessageInitShape<typeof AnnotationSchema>;

const ns = (ms: number) => BigInt(Math.round(ms)) * 1_000_000n;
const MINUTE = 60_000;

export interface FakeEvents {
  pins: Pin[];
  annotations: Annotation[];
  /** Pins whose profile was asked for, and whether what was captured. */
  asked: [bigint, boolean][];
  /** Neither answers. */
  broken: boolean;
}

function pin(id: bigint, fired: number, more: object = {}): Pin {
  return {
    id,
    hostId: 'id-web-3',
    hostname: 'web-3',
    pin: {
      id,
      trigger: 'api-throttled',
      cause: 'cpu.stat: throttled 41 % of 10 s, more than 20 %',
      cgroup: '/system.slice/api.service',
      firedUnixNs: ns(fired),
      range: { startUnixNs: ns(fired - 5 * MINUTE), endUnixNs: ns(fired + 2 * MINUTE) },
      bytes: 900_000n,
      ...more,
    },
    receivedUnixNs: ns(fired + 3 * MINUTE),
  };
}

export function eventServices(router: ConnectRouter, now: number): FakeEvents {
  const events: FakeEvents = {
    pins: [
      pin(12n, now - 20 * MINUTE, { captureBytes: 20_000n, captureId: 4n }),
      pin(11n, now - 3 * 24 * 60 * MINUTE, { trigger: HOSTILE.script, cause: HOSTILE.newline, cgroup: '' }),
    ],
    annotations: [
      {
        id: 3n,
        startUnixNs: ns(now - 30 * MINUTE),
        text: 'registry.example/api: image v42 (was v41)',
        kind: 'deploy',
        by: 'collector',
        hosts: 6n,
        hostNames: ['web-1', 'web-2', 'web-3', 'web-4', 'web-5', 'web-6'],
        labels: { image: 'registry.example/api:v42' },
      },
      {
        id: 2n,
        startUnixNs: ns(now - 45 * MINUTE),
        text: HOSTILE.script,
        kind: 'note',
        by: 'anna',
        url: 'https://wiki.example/incident/7',
      },
      {
        id: 1n,
        startUnixNs: ns(now - 10 * MINUTE),
        text: 'a bad link',
        kind: 'note',
        by: 'eve',
        url: 'javascript:alert(1)',
      },
    ],
    asked: [],
    broken: false,
  };
  const work = () => {
    if (events.broken) throw new ConnectError('annotations are not kept here', Code.Unavailable);
  };
  const within = (at: bigint, range: { startUnixNs: bigint; endUnixNs: bigint } | undefined) =>
    !range || (at >= range.startUnixNs && at < range.endUnixNs);
  router.service(PinService, {
    list(request) {
      work();
      const pins = events.pins.filter(
        (one) =>
          (request.id === 0n || request.id === one.id) &&
          within((one.pin?.firedUnixNs as bigint | undefined) ?? 0n, request.range),
      );
      return { pins, leftOut: 0n };
    },
    async *profile(request) {
      work();
      const found = events.pins.find((one) => one.id === request.id);
      if (!found) throw new ConnectError(`there is no pin ${request.id}`, Code.NotFound);
      events.asked.push([request.id, request.captured]);
      const startMs = Number(((found.pin?.range?.startUnixNs as bigint | undefined) ?? 0n) / 1_000_000n);
      const hosts = [found.hostname ?? ''];
      for (const chunk of timed({ startMs, durationMs: request.captured ? 3_000 : 20_000, samples: 3_000, hosts }))
        yield { chunk };
    },
  });
  router.service(AnnotationService, {
    list(request) {
      work();
      const annotations = events.annotations.filter((one) =>
        within((one.startUnixNs as bigint | undefined) ?? 0n, request.range),
      );
      return { annotations, leftOut: 0n };
    },
  });
  return events;
}
