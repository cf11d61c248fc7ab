//! Which programs run: ordinary ones of the distribution, chosen before anybody saw their results.
//!
//! Each is a shell command that is repeated for the seconds of its turn, so short programs are new
//! processes all the time. What is compiled first is a few lines of its language by the compiler of
//! the distribution, with its usual optimization.

/// One row.
pub struct Program {
    /// The language that most of it is written in.
    pub language: &'static str,
    /// What it goes by.
    pub name: &'static str,
    /// A program that is there when it can run.
    pub needs: &'static str,
    /// The package of Debian 12 that has it.
    pub package: &'static str,
    /// Run once before its turn, in the directory that [`INPUTS`] filled.
    pub prepare: &'static str,
    /// Repeated.
    pub run: &'static str,
}

const fn program(
    language: &'static str,
    name: &'static str,
    needs: &'static str,
    package: &'static str,
    run: &'static str,
) -> Program {
    Program {
        language,
        name,
        needs,
        package,
        prepare: "",
        run,
    }
}

/// The same, with something to be done before.
const fn prepared(program: Program, prepare: &'static str) -> Program {
    Program { prepare, ..program }
}

/// What all find in their directory: `data`, 32 MB of programs; `text`, 24 MB of Python; `sort.c`,
/// which sorts words twenty times.
pub const INPUTS: &str = r#"
find /usr/bin /usr/lib -type f -size -4M -print0 | sort -z | xargs -0 cat 2>/dev/null | head -c 32M > data
find /usr/lib/python3* -name '*.py' -print0 | sort -z | xargs -0 cat 2>/dev/null | head -c 24M > text
cat > sort.c <<'.'
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifndef ROUND
#define ROUND 0
#endif
static int compare(const void *a, const void *b) { return memcmp(a, b, 16); }
int main(void) {
  static char words[40000][16];
  for (int round = 0; round < 20; round++) {
    for (int i = 0; i < 40000; i++) snprintf(words[i], 16, "%d", (i + ROUND) * 7919 % 65537);
    qsort(words, 40000, 16, compare);
  }
  puts(words[0]);
}
.
"#;

/// A thousand functions of C.
const BIG_C: &str = r#"for i in $(seq 1000); do echo "int f$i(int *a, int n) { int s = $i; for (int i = 0; i < n; i++) { if (a[i] % $i > 3) s += a[i] * (s ^ $i); else a[i] ^= s; } return s; }"; done > big.c"#;

/// All of them.
pub const PROGRAMS: &[Program] = &[
    program("C", "gzip", "gzip", "gzip", "gzip -9c data"),
    program("C", "bzip2", "bzip2", "bzip2", "bzip2 -9c data"),
    program("C", "xz", "xz", "xz-utils", "xz -6c data"),
    program("C", "zstd", "zstd", "zstd", "zstd -15 -c data"),
    program("C", "base64", "base64", "coreutils", "base64 data"),
    program("C", "sort", "sort", "coreutils", "sort text"),
    program(
        "C",
        "grep",
        "grep",
        "grep",
        r"grep -cE '(self|class)[a-z_]+\(.*(x|y)' text",
    ),
    program(
        "C",
        "mawk",
        "mawk",
        "mawk",
        "mawk '{ for (i = 1; i <= NF; i++) c[$i]++ } END { for (w in c) n++; print n }' text",
    ),
    program(
        "C",
        "openssl",
        "openssl",
        "openssl",
        "openssl speed -seconds 1 rsa2048",
    ),
    program(
        "C",
        "sqlite3",
        "sqlite3",
        "sqlite3",
        "sqlite3 :memory: 'WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 1000000) SELECT count(DISTINCT n * 7 % 1000), sum(n) FROM t'",
    ),
    program(
        "C",
        "jq",
        "jq",
        "jq",
        "jq -n '[range(200000) | {a: ., b: (. * 7 % 13)}] | group_by(.b) | length'",
    ),
    program(
        "C",
        "bc",
        "bc",
        "bc",
        "echo 'scale = 2000; 4 * a(1)' | bc -l",
    ),
    prepared(
        program("C", "git", "git", "git", "git -C repository repack -adfq"),
        "git init -q repository && split -b 200K text repository/part && git -C repository add . && git -C repository -c user.name=a -c user.email=a commit -qm all",
    ),
    prepared(
        program("C", "cc1", "gcc", "gcc", "gcc -O2 -c -o /dev/null big.c"),
        BIG_C,
    ),
    program(
        "C",
        "cc and run",
        "gcc",
        "gcc",
        "n=$((n + 1)); gcc -O2 -DROUND=$n -o new-$n sort.c && ./new-$n; rm -f new-$n",
    ),
    prepared(
        program("C", "musl, static", "musl-gcc", "musl-tools", "./musl"),
        "musl-gcc -O2 -static -o musl sort.c",
    ),
    prepared(
        program("C", "static-pie", "gcc", "gcc", "./static-pie"),
        "gcc -O2 -static-pie -o static-pie sort.c",
    ),
    program(
        "C",
        "busybox, static",
        "busybox",
        "busybox-static",
        "busybox sha256sum data",
    ),
    program(
        "C, OpenMP",
        "convert",
        "convert",
        "imagemagick",
        "convert -size 1200x800 plasma: -blur 0x8 -resize 50% null:",
    ),
    program(
        "C, assembler",
        "ffmpeg, x264",
        "ffmpeg",
        "ffmpeg",
        "ffmpeg -v error -f lavfi -i testsrc2=size=640x360:rate=25:duration=4 -c:v libx264 -f null -",
    ),
    program(
        "C++",
        "7z",
        "7z",
        "p7zip-full",
        "7z a -txz -mx=5 -mmt=1 -so -bd -si x < data",
    ),
    prepared(
        program(
            "C++",
            "cc1plus",
            "g++",
            "g++",
            "g++ -O2 -c -o /dev/null big.cc",
        ),
        r#"echo '#include <regex>
#include <map>
#include <iostream>
int main() { std::map<std::string, std::regex> all; all.emplace("a", std::regex("(a|b)*c")); for (auto &[k, v] : all) std::cout << std::regex_match(k, v); }' > big.cc"#,
    ),
    prepared(
        program(
            "C++",
            "cppcheck",
            "cppcheck",
            "cppcheck",
            "cppcheck -q --enable=style big.c",
        ),
        BIG_C,
    ),
    prepared(
        program(
            "C++",
            "povray",
            "povray",
            "povray",
            "povray +Iscene.pov -D +W320 +H240 +A0.1 -GA +Oscene.png",
        ),
        "echo 'camera { location <0, 2, -5> look_at 0 } light_source { <5, 9, -5> rgb 1 } plane { y, -1 pigment { checker rgb 1, rgb 0 } finish { reflection 0.4 } } sphere { 0, 1 pigment { rgb <1, 0, 0> } finish { reflection 0.5 phong 1 } }' > scene.pov",
    ),
    program(
        "Rust",
        "ripgrep",
        "rg",
        "ripgrep",
        r"rg -c '(self|class)\w+\(.*(x|y)' text",
    ),
    prepared(
        program(
            "Rust",
            "rustc",
            "rustc",
            "rustc",
            "rustc -O --crate-type lib --emit obj -o /dev/null big.rs",
        ),
        r#"for i in $(seq 300); do echo "pub fn f$i(v: &[u32]) -> Option<String> { v.iter().filter(|x| *x % $i == 1).map(|x| format!(\"{x}-$i\")).max() }"; done > big.rs"#,
    ),
    prepared(
        program(
            "Go",
            "go build",
            "go",
            "golang-go",
            "GOFLAGS=-mod=mod GOCACHE=$PWD/cache-$((n += 1)) go build -o built main.go; rm -rf cache-$n",
        ),
        "printf 'package main\n\nimport (\n\t\"encoding/json\"\n\t\"fmt\"\n)\n\nfunc main() {\n\tb, _ := json.Marshal(1)\n\tfmt.Println(string(b))\n}\n' > main.go",
    ),
    program("Go", "fzf", "fzf", "fzf", "seq 1 1000000 | fzf -f 1234"),
    prepared(
        program(
            "Go",
            "esbuild",
            "esbuild",
            "esbuild",
            "esbuild --minify big.js",
        ),
        r#"for i in $(seq 20000); do echo "function longName$i(first, second) { return first.map(x => x * $i + second).filter(Boolean); }"; done > big.js"#,
    ),
    prepared(
        program("Fortran", "gfortran", "gfortran", "gfortran", "./fortran"),
        r#"cat > a.f90 <<'.'
program main
  implicit none
  real(8), allocatable :: a(:,:), b(:,:), c(:,:)
  integer :: i
  allocate(a(400,400), b(400,400))
  call random_number(a)
  call random_number(b)
  do i = 1, 5
    c = matmul(a, transpose(b)) + sin(a)
    a = c / maxval(c)
  end do
  print *, sum(a)
end program
.
gfortran -O2 -o fortran a.f90"#,
    ),
    prepared(
        program("Ada", "gnat", "gnatmake", "gnat", "./sieve"),
        r#"cat > sieve.adb <<'.'
with Ada.Text_IO; with Ada.Containers.Ordered_Maps;
procedure Sieve is
   package Maps is new Ada.Containers.Ordered_Maps (Integer, Integer);
   M : Maps.Map;
begin
   for I in 1 .. 400_000 loop
      M.Include ((I * 7919) mod 65_537, I);
   end loop;
   Ada.Text_IO.Put_Line (Integer'Image (Integer (M.Length)));
end Sieve;
.
gnatmake -q -O2 sieve.adb"#,
    ),
    prepared(
        program(
            "OCaml",
            "ocamlopt's program",
            "ocamlopt",
            "ocaml-nox",
            "./trees",
        ),
        r#"cat > trees.ml <<'.'
module M = Map.Make (Int)
let rec fill m i = if i = 0 then m else fill (M.add (i * 7919 mod 65537) i m) (i - 1)
let () = for _ = 1 to 10 do Printf.printf "%d\n" (M.cardinal (fill M.empty 60000)) done
.
ocamlopt -o trees trees.ml"#,
    ),
    prepared(
        program(
            "Haskell",
            "shellcheck",
            "shellcheck",
            "shellcheck",
            "shellcheck -s bash big.sh",
        ),
        r#"for i in $(seq 300); do echo "f$i() { local a=\$1; for x in \"\$@\"; do [ \$a == \$x ] && echo \$((a + $i)); done; }"; done > big.sh"#,
    ),
    prepared(
        program("D", "ldc2", "ldc2", "ldc", "./d"),
        r#"cat > d.d <<'.'
import std.algorithm, std.array, std.conv, std.stdio;
void main() { foreach (r; 0 .. 10) { auto a = new string[60000]; foreach (i, ref s; a) s = to!string(i * 7919 % 65537); sort(a); writeln(a[0]); } }
.
ldc2 -O2 -of=d d.d"#,
    ),
    prepared(
        program("Pascal", "fpc", "fpc", "fp-compiler", "./pascal"),
        r#"cat > pascal.pas <<'.'
program p; uses Classes; var l: TStringList; i: longint; t: string;
begin l := TStringList.Create; for i := 1 to 60000 do begin str(i * 7919 mod 65537, t); l.Add(t) end; l.Sort; writeln(l[0]) end.
.
fpc -O2 -opascal pascal.pas"#,
    ),
    program(
        "Python",
        "python3",
        "python3",
        "python3",
        "python3 -c 'd = {}\nfor i in range(2000000): d[i % 997] = d.get(i % 997, 0) + i\nprint(sorted(d)[0])'",
    ),
    program(
        "Perl",
        "perl",
        "perl",
        "perl",
        "perl -e 'for $i (1 .. 2000000) { $h{$i % 997} .= \"x\" if $i =~ /7\\d*3/ } print scalar keys %h'",
    ),
    program(
        "Ruby",
        "ruby",
        "ruby",
        "ruby",
        "ruby -e 'h = Hash.new(0); 2_000_000.times { |i| h[(i * 7).to_s[-3..]] += i }; puts h.size'",
    ),
    program(
        "Lua",
        "lua",
        "lua5.4",
        "lua5.4",
        "lua5.4 -e 'local t = {} for i = 1, 3000000 do local k = (\"\" .. i):sub(-3) t[k] = (t[k] or 0) + i end print(next(t))'",
    ),
    program(
        "Lua",
        "luajit",
        "luajit",
        "luajit",
        "luajit -e 'local s, t = 0, {} for r = 1, 200 do for i = 1, 300000 do s = s + (i * r) % 7; t[i % 997] = s end end print(s)'",
    ),
    program(
        "Tcl",
        "tclsh",
        "tclsh",
        "tcl",
        "echo 'for {set i 0} {$i < 600000} {incr i} { dict incr d [string range $i end-2 end] }; puts [dict size $d]' | tclsh",
    ),
    program(
        "PHP",
        "php",
        "php",
        "php-cli",
        "php -r '$h = []; for ($i = 0; $i < 4000000; $i++) { $h[$i % 997] = md5((string) $i); } echo count($h);'",
    ),
    program(
        "Scheme",
        "guile",
        "guile",
        "guile-3.0",
        "guile -c '(define (fib n) (if (< n 2) n (+ (fib (- n 1)) (fib (- n 2))))) (display (fib 30))'",
    ),
    program(
        "Lisp",
        "sbcl",
        "sbcl",
        "sbcl",
        "sbcl --noinform --eval '(progn (defun fib (n) (if (< n 2) n (+ (fib (- n 1)) (fib (- n 2))))) (print (fib 32)) (exit))'",
    ),
    program(
        "JavaScript",
        "node",
        "node",
        "nodejs",
        "node -e 'const m = new Map(); for (let i = 0; i < 3e6; i++) m.set(String(i % 997), i); const s = x => x < 2 ? x : s(x - 1) + s(x - 2); console.log(m.size, s(30))'",
    ),
    prepared(
        program(
            "Java",
            "javac",
            "javac",
            "openjdk-17-jdk-headless",
            "javac -d . Big.java",
        ),
        r#"{ echo 'import java.util.*; class Big {'; for i in $(seq 500); do echo "static Map<String, List<Integer>> f$i(List<Integer> l) { Map<String, List<Integer>> m = new TreeMap<>(); for (int x : l) m.computeIfAbsent(\"\" + x % $i, k -> new ArrayList<>()).add(x); return m; }"; done; echo '}'; } > Big.java"#,
    ),
    prepared(
        program("Erlang", "erlc", "erlc", "erlang-base", "erlc big.erl"),
        r#"{ echo '-module(big). -export([f1/1]).'; for i in $(seq 600); do echo "f$i(L) -> [X * $i || X <- L, X rem $i > 2, is_integer(X)] ++ f$((i % 600 + 1))(tl(L))."; done; } > big.erl"#,
    ),
];
