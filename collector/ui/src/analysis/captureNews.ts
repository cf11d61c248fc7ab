// Handles the messages of a capture: its profiles are assembled and handed to the engine. Runs in
// the worker.

import type { FleetCaptureResponse } from '../gen/fleetprof/collector/v1/control_pb';
import { ProfileError } from '../query/columns';
import { Assembler } from '../query/profile';
import type { Engine } from './engine';
import type { CaptureNews } from './protocol';

/**
 * Takes a capture's answers in order. A profile is told as soon as it is complete: it is worth
 * seeing, whatever comes after it.
 * @throws ProfileError when a profile contradicts itself, or ends before its last part.
 */
export async function* captureNews(
  answers: AsyncIterable<FleetCaptureResponse>,
  engine: Engine,
): AsyncGenerator<CaptureNews> {
  const [now, past] = [new Assembler(), new Assembler()];
  let ended = false;
  for await (const { body } of answers) {
    switch (body.case) {
      case 'past':
        past.addChunk(body.value);
        if (past.complete) yield { case: 'past', value: engine.add(past.finish()) };
        break;
      case 'chunk':
        now.addChunk(body.value);
        yield { case: 'stacks', value: now.stacks };
        if (now.complete) yield { case: 'profile', value: engine.add(now.finish()) };
        break;
      case undefined:
        // A newer collector sends more kinds of news than this page knows.
        break;
      default:
        ended ||= body.case === 'result';
        yield body;
    }
  }
  if (ended && !now.complete && now.stacks > 0) throw new ProfileError('the profile is incomplete');
}
