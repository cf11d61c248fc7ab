// Leads from CPU time to what it lacks: where threads wait.

import { useSelectionState } from '../state/store';
import type { PageProps } from '../app/page';
import { WAITS_DRAFT } from './form';

/** `query`: whose waits; absent: of what is selected. */
export function CaptureWaits({ openCapture, query }: Pick<PageProps, 'openCapture'> & { query?: string }) {
  const selected = useSelectionState('query').query;
  return (
    <button
      type="button"
      class="plain link"
      title="CPU time has no waits for locks, disks or the network. Record where threads wait now, and who ends each wait"
      onClick={() => openCapture(query ?? selected, WAITS_DRAFT)}
    >
      Capture waits …
    </button>
  );
}
