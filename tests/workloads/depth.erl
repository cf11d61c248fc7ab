%% Busy for longer than any test, a hundred calls below its first function. A loop that never ended
%% would leave no reason to keep the callers.
-module(depth).
-export([main/0]).

main() ->
    X = down(100),
    io:format("~p~n", [X]).

down(0) -> turn(1 bsl 40, 1);
down(N) ->
    X = down(N - 1),
    X + N.

turn(0, X) -> X;
turn(Turns, X) -> turn(Turns - 1, (X * 1664525 + 1013904223) band 16#ffffffff).
