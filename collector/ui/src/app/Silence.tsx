// Said on every page while the worker that holds profiles says nothing: it hangs, and would be
// waited for without end.

import { useEffect, useState } from 'preact/hooks';
import { analysis } from '../analysis/client';
import { Icon } from './parts';

export function Silence() {
  const [silent, setSilent] = useState(analysis.isSilent);
  useEffect(() => {
    const follow = () => setSilent(analysis.isSilent);
    follow();
    return analysis.onSilence(follow);
  }, []);
  if (!silent) return null;
  return (
    <div class="trouble" role="alert" data-code="silent">
      <Icon of="warn" />
      <div>
        <strong>The analysis does not answer.</strong> It may be busy with a very large profile, or hang. A restart
        loads profiles again; captures that are kept here are lost with it.
      </div>
      <button type="button" onClick={() => analysis.restart()}>
        Restart it
      </button>
    </div>
  );
}
