<?php
// Objects, generators, callbacks, exceptions and arithmetic for PHP's compiler, for so many seconds.
class Node
{
    public function __construct(public int $value, public ?Node $next = null) {}
    public function sum(): int
    {
        $sum = 0;
        for ($node = $this; $node; $node = $node->next) {
            $sum += $node->value;
        }
        return $sum;
    }
    public function __toString(): string { return "node {$this->value}"; }
}

function nodes(int $count)
{
    for ($i = 0; $i < $count; $i++) {
        yield $i => new Node($i);
    }
}

function fibonacci(int $n): int { return $n < 2 ? $n : fibonacci($n - 1) + fibonacci($n - 2); }

function inside(int $size): int
{
    $sum = 0;
    for ($y = 0; $y < $size; $y++) {
        for ($x = 0; $x < $size; $x++) {
            [$r, $i, $turns] = [0.0, 0.0, 0];
            while ($turns < 50 && $r * $r + $i * $i < 4) {
                [$r, $i] = [$r * $r - $i * $i + 2.0 * $x / $size - 1.5, 2 * $r * $i + 2.0 * $y / $size - 1];
                $turns++;
            }
            $sum += $turns;
        }
    }
    return $sum;
}

function work(): int
{
    $list = null;
    for ($i = 0; $i < 2000; $i++) {
        $list = new Node($i, $list);
    }
    $sum = $list->sum() + inside(60);
    foreach (nodes(3000) as $key => $node) {
        $sum += strlen((string) $node) + $key;
    }
    $numbers = range(1, 5000);
    usort($numbers, fn($a, $b) => $a * 7919 % 1009 <=> $b * 7919 % 1009);
    $sum += array_sum(array_map(fn($n) => $n % 7 + fibonacci(8), array_slice($numbers, 0, 500)));
    $text = str_repeat('one two three ', 300);
    $sum += strlen(preg_replace_callback('/\w+/', fn($match) => ucfirst($match[0]), $text));
    try {
        throw new Exception('thrown');
    } catch (Exception $caught) {
        return $sum + strlen($caught->getMessage());
    }
}

$end = microtime(true) + (float) $argv[1];
while (microtime(true) < $end) {
    work();
}
