// Stands for the package of Grafana's assistant, which a flame graph does without.
export const OpenAssistantButton = () => null;
