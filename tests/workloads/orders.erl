%% Busy in a function below another, until it is killed or its life is over.
-module(orders).
-export([serve/0, settle/2]).

-define(LIFE_MS, 600000).

serve() ->
    serve(erlang:monotonic_time(millisecond) + ?LIFE_MS, 0).

serve(End, Sum) ->
    case erlang:monotonic_time(millisecond) < End of
        true -> serve(End, Sum bxor settle(3000, 1));
        false -> halt()
    end.

settle(0, X) -> X;
settle(Turns, X) -> settle(Turns - 1, (X * 1664525 + 1013904223) band 16#ffffffff).
