// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//go:build cgo

package gpumem

import (
	"fmt"
	"reflect"
	"strings"
)

// This file has the String methods of objects and structs. Those of constants are in codes.go. Each may be called at any
// time, also in a function that the library calls, and on nil.

// describe prints an object as its type and what is known of it, or why that is not known.
func describe(kind string, isNil bool, details func() (string, error)) string {
	if isNil {
		return kind + "(nil)"
	}
	known, err := details()
	if detail, ok := err.(*Error); ok {
		known = detail.Status.String()
		if isGone(err) {
			known = "closed"
		}
	} else if err != nil {
		known = err.Error()
	}
	return kind + "{" + known + "}"
}

// named returns a name in quotes, with a space before it; nothing if there is none.
func named(name string) string {
	if name == "" {
		return ""
	}
	return fmt.Sprintf(" %q", name)
}

// described is describe with the information about the object.
func described[T any](kind string, isNil bool, info func() (T, error), details func(T) string) string {
	return describe(kind, isNil, func() (string, error) {
		known, err := info()
		return strings.TrimPrefix(details(known), " "), err
	})
}

func (m *Memory) details() (string, error) {
	info, err := m.Info()
	return fmt.Sprintf("%v%s, %d bytes at %#x, device %d", info.Kind, named(info.Name), info.Size, m.address,
		info.DeviceOrdinal), err
}

// String returns the kind, the name, the size, the address and the device.
func (m *Memory) String() string { return describe("Memory", m == nil || m.handle == 0, m.details) }

// String returns the kind, the name, the size, the address and the device.
func (p *Pinned[T]) String() string { return (*typed[T])(p).describe("Pinned") }

// String returns the kind, the name, the size, the address and the device.
func (m *DeviceMemory[T]) String() string { return (*typed[T])(m).describe("DeviceMemory") }

// String returns the length and the address.
func (s Span[T]) String() string {
	return fmt.Sprintf("%s{%d values at %v}", generic[T]("Span"), s.Len(), s.address)
}

// String returns the kind, the name, the size, the address and the device.
func (m *Managed[T]) String() string { return (*typed[T])(m).describe("Managed") }

// String returns the memory.
func (a *HostAccess[T]) String() string {
	return describe(generic[T]("HostAccess"), a == nil || a.memory == nil, func() (string, error) {
		if a.closed() {
			return "closed", nil
		}
		return a.memory.String(), nil
	})
}

func (b *GrowableBuffer) details() (string, error) {
	info, err := b.Info()
	state := map[BufferState]string{BufferStateAsleep: ", asleep", BufferStateFailed: ", failed to wake"}[info.State]
	return strings.TrimPrefix(fmt.Sprintf("%s %d bytes at %v, %v %d%s", named(info.Name), info.Size, b.At(0), info.Location,
		info.LocationID, state), " "), err
}

// String returns the name, the size, the address and the location, and whether it sleeps.
func (b *GrowableBuffer) String() string { return describe("GrowableBuffer", b.id() == 0, b.details) }

// String returns the name, the size, the address and the location, and whether it sleeps.
func (b *Buffer[T]) String() string {
	return describe(generic[T]("Buffer"), b.GrowableBuffer().id() == 0, b.GrowableBuffer().details)
}

// String returns the name and the number of buffers, and how many sleep.
func (g *Group) String() string {
	return describe("Group", g == nil || g.handle == 0, func() (string, error) {
		info, err := g.Info("")
		return strings.TrimPrefix(fmt.Sprintf("%s %d buffers, %d asleep", named(info.Name), info.BufferCount,
			info.AsleepCount+info.FailedCount), " "), err
	})
}

// String returns the name and the buffer.
func (r *Registration) String() string {
	return describe("Registration", r == nil || r.buffer == nil, func() (string, error) {
		if r.done.Load() {
			return "closed", nil
		}
		return fmt.Sprintf("%q of %v", r.name, r.buffer), nil
	})
}

// String says what the handle stands for, and leaves out the bytes, which are a secret.
func (h ShareHandle) String() string {
	if h.Equal(ShareHandle{}) {
		return "ShareHandle{}"
	}
	return describe("ShareHandle", false, func() (string, error) {
		info, err := h.Info()
		if info.Type == ShareTypeEvent {
			return fmt.Sprintf("event of process %d", info.ExporterPID), err
		}
		if info.Type == ShareTypeRing {
			return fmt.Sprintf("ring of process %d", info.ExporterPID), err
		}
		return fmt.Sprintf("%d bytes of process %d, %v", info.Size, info.ExporterPID, info.Way), err
	})
}

// Format prints the same for every verb.
func (h ShareHandle) Format(state fmt.State, _ rune) { _, _ = fmt.Fprint(state, h.String()) }

// String returns the length, and leaves out the bytes, which are a secret.
func (t Token) String() string {
	if t.secret == nil {
		return "Token{}"
	}
	return fmt.Sprintf("Token{%d bytes}", len(t.secret()))
}

// String returns the kind, the size and the address.
func (b *PoolBlock) String() string {
	return describe("PoolBlock", b == nil || b.pool == nil, func() (string, error) {
		if b.closed() {
			return "freed", nil
		}
		return fmt.Sprintf("%v, %d bytes at %#x", b.pool.kind, b.size, b.address), nil
	})
}

func (r *ring) describe(kind string) string {
	return describe(kind, r == nil || r.handle == 0, func() (string, error) {
		info, err := r.info()
		return strings.TrimPrefix(fmt.Sprintf("%s %d slots of %d bytes, %d consumers", named(info.Name), info.Slots,
			info.SlotSize, info.ConsumerCount), " "), err
	})
}

// String returns the name, the slots and the number of consumers.
func (p *RingProducer) String() string { return p.side().describe("RingProducer") }

// String returns the name, the slots and the number of consumers.
func (c *RingConsumer) String() string { return c.side().describe("RingConsumer") }

// String returns the number and the size of the message.
func (s *RingSlot) String() string {
	return describe("RingSlot", s == nil || s.of == nil, func() (string, error) {
		return fmt.Sprintf("message %d, %d bytes", s.Number(), s.Size()), nil
	})
}

// String returns the number and the size of the message.
func (m *RingMessage) String() string {
	return describe("RingMessage", m == nil || m.of == nil, func() (string, error) {
		return fmt.Sprintf("message %d, %d bytes", m.Number(), m.Size()), nil
	})
}

// String returns the bytes in base 16.
func (h FabricHandle) String() string { return fmt.Sprintf("%x", h[:]) }

// String returns the length and the address.
func (p *Pageable[T]) String() string {
	return describe(generic[T]("Pageable"), p == nil || p.mapping == nil, func() (string, error) {
		if p.mapping.closed() {
			return "closed", nil
		}
		return fmt.Sprintf("%d values at %#x", p.length, p.mapping.address), nil
	})
}

// generic is the name of a type with its parameter.
func generic[T any](name string) string {
	return fmt.Sprintf("%s[%v]", name, reflect.TypeOf((*T)(nil)).Elem())
}

// String says whether the kernel runs.
func (k *HostKernel) String() string {
	return describe("HostKernel", k == nil, func() (string, error) {
		if k.ended.Load() {
			return "ended", nil
		}
		return "running", nil
	})
}

// String returns the address in base 16.
func (a Address) String() string { return fmt.Sprintf("%#x", a.value) }

// String returns the address in base 16.
func (p DevicePtr) String() string { return fmt.Sprintf("%#x", uint64(p)) }

// Format prints the address in base 16 for %v and %s, and as the number that it is for %d, %x and the like.
func (p DevicePtr) Format(state fmt.State, verb rune) {
	if verb == 'v' || verb == 's' {
		_, _ = fmt.Fprint(state, p.String())
		return
	}
	format := "%"
	for _, flag := range "+-# 0" {
		if state.Flag(int(flag)) {
			format += string(flag)
		}
	}
	if width, set := state.Width(); set {
		format += fmt.Sprint(width)
	}
	_, _ = fmt.Fprintf(state, format+string(verb), uint64(p))
}

// The structs print their type, and the fields that are not zero.

func (o FileOptions) String() string      { return fields(o) }
func (c FileCopied) String() string       { return fields(c) }
func (o Operand) String() string          { return fields(o) }
func (r Region) String() string           { return fields(r) }
func (r Rectangle) String() string        { return fields(r) }
func (r ManagedRange) String() string     { return fields(r) }
func (a ProcessorAccess) String() string  { return fields(a) }
func (i StatusInfo) String() string       { return fields(i) }
func (c BufferCallbacks) String() string  { return fields(c) }
func (c ImportCache) String() string      { return fields(c) }
func (c CollectedObjects) String() string { return fields(c) }

// addresses are the fields that are numbers but print in base 16.
var addresses = map[string]bool{"HostPointer": true, "Base": true, "Address": true, "NativeStream": true, "NativeEvent": true}

func fields(value any) string {
	from := reflect.ValueOf(value)
	var parts []string
	for i := 0; i < from.NumField(); i++ {
		field, name := from.Field(i), from.Type().Field(i).Name
		if field.IsZero() || !field.CanInterface() {
			continue
		}
		format := "%s: %v"
		switch {
		case field.Kind() == reflect.String:
			format = "%s: %q"
		case field.Kind() == reflect.Array:
			format = "%s: %x"
		case field.Kind() == reflect.Func:
			format = "%s: %T"
		case addresses[name] && field.Kind() != reflect.Struct:
			format = "%s: %#x"
		}
		parts = append(parts, fmt.Sprintf(format, name, field.Interface()))
	}
	return from.Type().Name() + "{" + strings.Join(parts, ", ") + "}"
}
