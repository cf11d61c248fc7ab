//! A release build with generic and nested names: busy in `orchard::press::Press<T>::squeeze` until
//! it is killed or its life is over.

mod press {
    use std::hint::black_box;

    pub struct Press<T> {
        pub juice: T,
    }

    impl<T: Copy + Into<u64>> Press<T> {
        #[inline(never)]
        pub fn squeeze(&self, turns: u64) -> u64 {
            let mut x: u64 = self.juice.into() | 1;
            for _ in 0..black_box(turns) {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
            }
            x
        }
    }
}

#[inline(never)]
fn harvest(press: &press::Press<u32>) -> u64 {
    let mut sum = 0u64;
    for _ in 0..100 {
        sum = sum.wrapping_add(std::hint::black_box(press).squeeze(100_000));
    }
    sum
}

fn main() {
    let press = press::Press { juice: 17u32 };
    let begin = std::time::Instant::now();
    while begin.elapsed().as_secs() < 150 {
        std::hint::black_box(harvest(&press));
    }
}
