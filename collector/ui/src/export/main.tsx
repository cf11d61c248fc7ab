// Starts the viewer in a file that stands alone: what it shows is in the file, and it asks nobody.

import '../app/base.css';
import '../tables/tables.css';
import '../flame/flame.css';
import '../heat/heat.css';
import './export.css';
import { render } from 'preact';
import { analyseWith, analysis } from '../analysis/client';
import { Engine } from '../analysis/engine';
import { inlinePort } from '../analysis/inline';
import { Service } from '../analysis/service';
import { searchWith } from '../flame/useMask';
import { adoptDefaults } from '../state/address';
import { followAddress } from '../state/store';
import { followTheme } from '../state/theme';
import { showUtc } from '../text/format';
import { FilePage } from './FilePage';
import { type FileData, open } from './file';
import { inlineSearch } from './search';

followTheme();
// It is read elsewhere than where it was made.
showUtc();

function start(place: HTMLElement): void {
  const data = JSON.parse(document.getElementById('data')?.textContent ?? '') as FileData;
  const { profile, before, weighs } = open(data);
  adoptDefaults({ flame: !data.icicle, samples: data.measure === 0 || !weighs });
  followAddress();
  const engine = new Engine();
  analyseWith(() => inlinePort((send) => new Service(send, undefined, engine)));
  searchWith(inlineSearch);
  analysis.open();
  render(
    <FilePage
      profile={engine.add(profile)}
      before={before && engine.add(before)}
      compare={data.before && !data.before.scaled ? 'total' : 'share'}
      weighs={weighs ? data.weighs.slice(0, 80) : ''}
      size={{ bars: data.nodes.depth.length - 1, functions: data.names.function.length - 1 }}
    />,
    place,
  );
}

// Title and facts are text of the file, and are seen before what takes longer.
setTimeout(() => {
  const place = document.getElementById('app');
  if (!place) return;
  try {
    start(place);
  } catch (error) {
    render(
      <div class="trouble" role="alert">
        <div>
          <strong>This file cannot be shown.</strong> It is damaged or incomplete.
          <p class="said">{String(error)}</p>
        </div>
      </div>,
      place,
    );
  }
});
