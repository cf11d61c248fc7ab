// Whose width the frames of a comparison have.

import { Choice } from '../app/parts';
import { setState, useDisplayState } from '../state/store';

export function WidthChoice() {
  const { width } = useDisplayState('width');
  return (
    <Choice
      label="Width"
      value={width}
      of={[
        ['both', 'Width: larger side', 'The larger side; frames that are gone stay visible'],
        ['before', 'before', 'Width of the baseline'],
        ['after', 'after', 'Width of the side after; frames that are gone disappear'],
      ]}
      onChange={(next) => setState({ width: next })}
    />
  );
}
