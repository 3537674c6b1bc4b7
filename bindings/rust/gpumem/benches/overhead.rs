// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//! Measures what this crate adds to calls of the C interface. Prints numbers for people, and checks nothing.

/// The benchmark compares with linked functions.
#[cfg(feature = "load")]
fn main() {
    println!("run this without the feature `load`");
}

#[cfg(not(feature = "load"))]
fn main() {
    linked::main();
}

#[cfg(not(feature = "load"))]
mod linked {
    use std::mem::MaybeUninit;
    use std::ptr;
    use std::time::Instant;

    use gpumem::{sys, Backend, DeviceMemory, Instance, Pinned, Pool, Stream};

    const ROUNDS: usize = 25;

    /// Nanoseconds of one call.
    fn time(calls: u32, call: &mut impl FnMut()) -> f64 {
        let start = Instant::now();
        (0..calls).for_each(|_| call());
        start.elapsed().as_nanos() as f64 / f64::from(calls)
    }

    /// Compares two ways to make the same call by the best of alternating rounds.
    fn compare(name: &str, calls: u32, mut c: impl FnMut(), mut rust: impl FnMut()) {
        let (mut best_c, mut best_rust) = (f64::INFINITY, f64::INFINITY);
        for _ in 0..ROUNDS {
            best_c = best_c.min(time(calls, &mut c));
            best_rust = best_rust.min(time(calls, &mut rust));
        }
        let (more, ratio) = (best_rust - best_c, best_rust / best_c);
        println!(
            "{name}: C {best_c:.1} ns, Rust {best_rust:.1} ns, difference {more:.1} ns, ratio {ratio:.3}"
        );
    }

    /// Makes the compiler believe that the value is used.
    #[inline(never)]
    fn keep(_value: u64) {}

    pub fn main() {
        let instance = Instance::open(Backend::HOST).unwrap();
        let device = instance.device(0).unwrap();
        let stream = Stream::new(&device).unwrap();
        let pinned = Pinned::<u8>::zeroed(&device, 64).unwrap();
        let memory = DeviceMemory::<u8>::new(&device, 64).unwrap();

        // Equal objects for calls without this crate.
        let mut detail = sys::gpumem_error::default();
        let error: *mut sys::gpumem_error = &mut detail;
        let desc = sys::gpumem_instance_desc { backend: sys::GPUMEM_BACKEND_HOST, ..Default::default() };
        let (mut raw_instance, mut raw_device, mut raw_stream) =
            (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        let (mut raw_pinned, mut raw_memory) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY, for all of this: the calls are those that the crate makes, with live objects.
        unsafe {
            assert_eq!(sys::gpumem_instance_open(&desc, &mut raw_instance, error), 0);
            assert_eq!(sys::gpumem_device_get(raw_instance, 0, &mut raw_device, error), 0);
            assert_eq!(sys::gpumem_stream_create(raw_device, ptr::null(), &mut raw_stream, error), 0);
            assert_eq!(
                sys::gpumem_malloc(raw_device, sys::GPUMEM_KIND_PINNED, 64, &mut raw_pinned, error),
                0
            );
            assert_eq!(
                sys::gpumem_malloc(raw_device, sys::GPUMEM_KIND_DEVICE, 64, &mut raw_memory, error),
                0
            );
        }

        compare(
            "gpumem_version, an empty call",
            1_000_000,
            || keep(unsafe { sys::gpumem_version() }.into()),
            || keep(unsafe { sys::gpumem_version() }.into()),
        );
        compare(
            "query a stream",
            50_000,
            || keep(unsafe { sys::gpumem_stream_query(raw_stream, error) } as u64),
            || keep(stream.is_complete().map_or(2, u64::from)),
        );
        let (mut free, mut total) = (0, 0);
        compare(
            "free memory of a device",
            50_000,
            || keep(unsafe { sys::gpumem_device_get_memory(raw_device, &mut free, &mut total, error) } as u64),
            || keep(device.memory().map_or(0, |bytes| bytes.free)),
        );
        let options = sys::gpumem_copy_options::default();
        let instance_c = raw_instance;
        compare(
            "copy 64 bytes",
            2_000,
            || {
                keep(unsafe { sys::gpumem_copy(instance_c, raw_memory, raw_pinned, 64, &options, error) }
                    as u64)
            },
            || keep(instance.copy(&memory, &pinned).map_or(1, |()| 0)),
        );
        compare(
            "create and destroy pinned memory",
            200,
            || unsafe {
                let mut pointer = ptr::null_mut();
                sys::gpumem_malloc(raw_device, sys::GPUMEM_KIND_PINNED, 64, &mut pointer, error);
                sys::gpumem_free(instance_c, pointer, error);
            },
            || keep(Pinned::<MaybeUninit<u8>>::uninit(&device, 64).map_or(0, |array| array.len() as u64)),
        );

        let pool = Pool::new(&device).unwrap();
        let mut raw_pool = ptr::null_mut();
        // SAFETY: as above.
        assert_eq!(unsafe { sys::gpumem_pool_create(raw_device, ptr::null(), &mut raw_pool, error) }, 0);
        let in_c = || unsafe {
            let mut pointer = ptr::null_mut();
            sys::gpumem_pool_alloc(raw_pool, 1000, raw_stream, &mut pointer, error);
            sys::gpumem_pool_free_sized(raw_pool, pointer, 1000, raw_stream, error);
        };
        compare("allocate and free a block of a pool", 50_000, in_c, || {
            keep(pool.alloc::<u8>(1000, Some(&stream)).map_or(0, |block| block.len() as u64));
        });
        compare("allocate and free a block of a pool, raw", 50_000, in_c, || {
            // SAFETY: nothing uses the block.
            keep(pool.alloc_raw(1000, Some(&stream)).map_or(0, |pointer| unsafe {
                u64::from(pool.free_sized_raw(pointer, 1000, Some(&stream)).is_ok())
            }));
        });

        // SAFETY: nothing uses its memory any more.
        unsafe { sys::gpumem_instance_close(raw_instance, sys::GPUMEM_CLOSE_FORCE, ptr::null_mut(), error) };
    }
}
