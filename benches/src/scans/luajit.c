// Runs Lua in LuaJIT for so many seconds, called from `run`, or `nested`, from `inner` in `outer`
// in `run`. In between it leaves return addresses of other calls on the stack.
#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WHOLE __attribute__((noipa))

static int by_number(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

WHOLE int litter(int deeper) {
  char text[64];
  int numbers[16];
  for (int i = 0; i < 16; i++) numbers[i] = (i * 7919 + deeper) % 97;
  qsort(numbers, 16, sizeof *numbers, by_number);
  snprintf(text, sizeof text, "%d %f", deeper, numbers[3] * 1.5);
  return deeper == 0 ? text[0] : litter(deeper - 1) + text[1];
}

WHOLE int inner(lua_State *lua) {
  litter(20);
  lua_pushvalue(lua, 1);
  lua_call(lua, 0, 1);
  return 1 + 0 * litter(1);
}

WHOLE int outer(lua_State *lua) {
  litter(7);
  lua_pushcfunction(lua, inner);
  lua_pushvalue(lua, 1);
  lua_call(lua, 1, 1);
  return 1 + 0 * litter(3);
}

WHOLE int run(lua_State *lua, const char *text) {
  litter(30);
  if (luaL_loadstring(lua, text) != 0 || lua_pcall(lua, 0, 0, 0) != 0) {
    puts(lua_tostring(lua, -1));
    exit(1);
  }
  return litter(2);
}

static const char flat[] =
    "local start = os.clock() "
    "local kept = {} "
    "while os.clock() < start + 0.2 do "
    "  for i = 1, 20000 do "
    "    local a, b, c, d, e, f = i * 1.1, i * 1.2, i * 1.3, i * 1.4, i * 1.5, i * 1.6 "
    "    kept[i % 64] = (a * b + c * d) / (e + f) + math.sin(a) + (kept[(i + 1) % 64] or 1) % 3 "
    "  end "
    "  local last "
    "  for i = 1, 2000 do last = { i, n = last and last.n } last['k' .. i] = i end "
    "end";

static const char nested[] =
    "local function work() "
    "  local x = 0 for i = 1, 20000 do x = (x * 31 + i) % 1000003 end return x "
    "end "
    "local start = os.clock() "
    "while os.clock() < start + 0.2 do outer(work) end";

int main(int argc, char **argv) {
  int turns = argc > 1 ? atoi(argv[1]) * 5 : 1;
  const char *text = argc > 2 && strcmp(argv[2], "nested") == 0 ? nested : flat;
  lua_State *lua = luaL_newstate();
  luaL_openlibs(lua);
  lua_register(lua, "outer", outer);
  for (int turn = 0; turn < turns; turn++) run(lua, text);
  return 0;
}
