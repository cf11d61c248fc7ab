//! Colours of frames, the same as on the collector's page (`collector/ui/src/flame/colour.ts`).
//!
//! Native code, nearly all of most profiles, is a neutral blue-grey of its module's family; the
//! kernel is warm, generated code green, interpreted code violet, inlined functions blue-green.
//! What is no code is grey. A name always has the same shade.

use crate::frame::FrameKind;

/// Red, green and blue.
pub(super) type Rgb = (u8, u8, u8);

/// Hue in degrees, saturation and lightness in percent.
type Hsl = (f64, f64, f64);

const KERNEL: Hsl = (14.0, 74.0, 72.0);
const JIT: Hsl = (138.0, 38.0, 66.0);
const INTERPRETED: Hsl = (268.0, 52.0, 79.0);
const INLINED: Hsl = (190.0, 34.0, 74.0);
const LABEL: Hsl = (220.0, 14.0, 66.0);
const NO_CODE: Hsl = (220.0, 6.0, 76.0);

/// Families of modules.
const FAMILIES: [Hsl; 6] = [
    (212.0, 24.0, 77.0),
    (199.0, 26.0, 74.0),
    (226.0, 26.0, 79.0),
    (205.0, 16.0, 70.0),
    (234.0, 20.0, 74.0),
    (216.0, 34.0, 81.0),
];

const SHADES: u32 = 8;

/// The colour of a frame.
pub(super) fn colour(kind: FrameKind, module: &str, name: &str) -> Rgb {
    let step = f64::from(hash(name) % SHADES) / f64::from(SHADES - 1) - 0.5;
    let of_kind = |(hue, saturation, lightness): Hsl| {
        rgb((hue + step * 14.0, saturation, lightness - step * 9.0))
    };
    match kind {
        FrameKind::Kernel => of_kind(KERNEL),
        FrameKind::Jit => of_kind(JIT),
        FrameKind::Interpreted => of_kind(INTERPRETED),
        FrameKind::Inlined => of_kind(INLINED),
        // Darker than what is only not known: this is time without any stack.
        FrameKind::Synthetic if name == crate::LOST_FRAME => rgb((240.0, 2.0, 58.0)),
        FrameKind::Synthetic => rgb(NO_CODE),
        FrameKind::Native => {
            let (hue, saturation, lightness) =
                FAMILIES[hash(family(module)) as usize % FAMILIES.len()];
            rgb((hue + step * 5.0, saturation, lightness - step * 8.0))
        }
    }
}

/// The colour of a label's value.
pub(super) fn of_label() -> Rgb {
    rgb(LABEL)
}

/// The colour of the root, which is all of them.
pub(super) fn of_root() -> Rgb {
    rgb((220.0, 6.0, 84.0))
}

/// Versions of one library are one family: `libc.so.6`, `libc-2.31.so`.
fn family(module: &str) -> &str {
    let file = module.rsplit('/').next().unwrap_or_default();
    let cut = file.char_indices().find(|&(at, found)| {
        let rest = &file[at + found.len_utf8()..];
        matches!(found, '-' | '.')
            && (rest.starts_with("so") || rest.starts_with(|digit: char| digit.is_ascii_digit()))
    });
    cut.map_or(file, |(at, _)| &file[..at])
}

/// FNV-1a over UTF-16 units, with the weak low bits mixed with the high ones: as the page does.
fn hash(text: &str) -> u32 {
    let value = text.encode_utf16().fold(0x811c_9dc5u32, |value, unit| {
        (value ^ u32::from(unit)).wrapping_mul(0x0100_0193)
    });
    (value ^ (value >> 15)).wrapping_mul(0x2c1b_3c6d)
}

fn rgb((hue, saturation, lightness): Hsl) -> Rgb {
    let (saturation, lightness) = (saturation / 100.0, lightness / 100.0);
    let strength = saturation * lightness.min(1.0 - lightness);
    let part = |n: f64| {
        let k = (n + hue.rem_euclid(360.0) / 30.0) % 12.0;
        let value = lightness - strength * (k - 3.0).min(9.0 - k).clamp(-1.0, 1.0);
        (value * 255.0).round().clamp(0.0, 255.0) as u8
    };
    (part(0.0), part(8.0), part(4.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_told_apart_by_hue() {
        let (red, green, blue) = colour(FrameKind::Kernel, "[kernel]", "schedule");
        assert!(red > green && green > blue, "warm");
        let (red, green, blue) = colour(FrameKind::Jit, "[jit]", "run");
        assert!(green > red && green > blue, "green");
        let (red, green, blue) = colour(FrameKind::Interpreted, "", "run");
        assert!(blue > green && red > green, "violet");
        for module in ["/lib/libc.so.6", "/usr/sbin/nginx", "redis-server", ""] {
            let (red, green, blue) = colour(FrameKind::Native, module, "run");
            assert!(blue > red && blue >= green, "blue-grey: {module}");
            assert!(blue - red < 60, "neutral: {module}");
        }
    }

    #[test]
    fn a_module_has_one_family_whatever_its_version() {
        for (module, expected) in [
            ("/lib/x86_64-linux-gnu/libc.so.6", "libc"),
            ("/lib/libc-2.31.so", "libc"),
            ("/usr/sbin/nginx", "nginx"),
            ("redis-server", "redis-server"),
            ("/opt/a.b/python3.12", "python3"),
            ("", ""),
        ] {
            assert_eq!(family(module), expected, "{module}");
        }
    }

    /// The page's test has the same numbers.
    #[test]
    fn texts_hash_as_on_the_page() {
        assert_eq!((hash("libc") % 6, hash("main") % 8), (0, 5));
        assert_eq!(rgb((0.0, 100.0, 50.0)), (255, 0, 0));
        assert_eq!(rgb((212.0, 24.0, 77.0)), (182, 195, 210));
    }
}
