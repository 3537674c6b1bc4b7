// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

const ringSize = 1000

// ringMessage is what a message has: its bytes and its size depend on its number.
func ringMessage(number uint64) []byte {
	content := make([]byte, ringSize-number%7)
	for index := range content {
		content[index] = byte(number*31 + uint64(index))
	}
	return content
}

func ringTag(number uint64) uint64 { return number*1_000_003 + 7 }

func newRing(t testing.TB, d *Device, options RingOptions) *RingProducer {
	t.Helper()
	needs(t, d, CapabilityShareEvents)
	options.SlotSize = ringSize
	p, err := d.NewRing(options)
	must(t, err)
	return p
}

// within is a context for what another process is needed for.
func within(t testing.TB, limit time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	return ctx
}

// produce publishes messages, by work of the stream unless that is nil.
func produce(t testing.TB, p *RingProducer, stream *Stream, count int) {
	t.Helper()
	for ; count > 0; count-- {
		slot, err := p.Acquire(within(t, shareLimit), stream)
		must(t, err)
		content := ringMessage(slot.Number())
		if stream != nil {
			must(t, CopyFromSliceAsync(stream, slot.At(0), content))
		} else {
			must(t, CopyFromSlice(p.instance, slot.At(0), content))
		}
		must(t, slot.Publish(uint64(len(content)), ringTag(slot.Number())))
		must(t, slot.Drop())
	}
}

func checkMessage(c *RingConsumer, stream *Stream, message *RingMessage) error {
	content := make([]byte, message.Size())
	if err := CopyToSlice(c.instance, content, message.At(0)); err != nil {
		return err
	}
	if err := CopyToSlice(c.instance, make([]byte, len(content)+1), message.At(0)); !errors.Is(err, ErrInvalidArgument) {
		return fmt.Errorf("a copy of more than the message: %w", err)
	}
	if expected := ringMessage(message.Number()); string(content) != string(expected) {
		return fmt.Errorf("message %d has other bytes", message.Number())
	}
	if message.Tag() != ringTag(message.Number()) {
		return fmt.Errorf("message %d has the tag %d", message.Number(), message.Tag())
	}
	return nil
}

func TestErrorsOfRingsNameTheirMethods(t *testing.T) {
	d := device(t)
	p := newRing(t, d, RingOptions{Slots: 1})
	s, err := d.NewStream(StreamOptions{})
	must(t, err)
	c := &RingConsumer{ring{instance: d.Instance(), handled: handled{handle: p.handle}}} // Without a process of its own.
	var closeErr error
	must(t, s.Launch(func() { closeErr = c.Close() }))
	must(t, s.Synchronize())
	slot, err := p.Acquire(context.Background(), s)
	must(t, err)
	must(t, s.Fill(slot.At(0), 1, 1, 1))
	e := newEvent(t, d)
	must(t, e.Record(s))
	must(t, s.Close())
	dropErr := slot.Drop()
	must(t, e.Synchronize())
	must(t, p.Finish(context.Background()))
	must(t, p.Close())
	_, infoErr := c.Info()
	for name, err := range map[string]error{"RingConsumer.Close": closeErr, "RingConsumer.Info": infoErr, "RingSlot.Drop": dropErr} {
		if err == nil || !strings.HasPrefix(err.Error(), name+": ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A panic of a function of its stream is no reason to lose a slot.
func TestASlotIsDroppedAfterAPanic(t *testing.T) {
	d := device(t)
	p := newRing(t, d, RingOptions{Slots: 1})
	s := newStream(t, d)
	slot, err := p.Acquire(context.Background(), s)
	must(t, err)
	must(t, s.Launch(func() { panic("while it is filled") }))
	var caught *PanicError
	if err := slot.Drop(); !errors.As(err, &caught) {
		t.Error(err)
	}
	again, err := p.Acquire(context.Background(), s)
	must(t, err)
	if again.Number() != slot.Number() {
		t.Errorf("another slot comes: %v", again)
	}
	must(t, again.Drop())
	must(t, p.Finish(context.Background()))
	must(t, p.Close())
}

func TestRing(t *testing.T) {
	d := device(t)
	p := newRing(t, d, RingOptions{Slots: 3, MaxConsumers: 2, Name: "ours"})
	background := context.Background()
	handle, err := p.Export()
	must(t, err)
	info, err := handle.Info()
	must(t, err)
	if info.Type != ShareTypeRing {
		t.Errorf("the handle says %v", info)
	}
	base, err := p.Info()
	must(t, err)
	expected := RingInfo{0, true, base.Base, ringSize, base.SlotStride, 3, 2, 0, 0, 0, 0, false, "ours"}
	if base != expected {
		t.Errorf("%v instead of %v", base, expected)
	}
	if text := p.String(); text != `RingProducer{"ours" 3 slots of 1000 bytes, 0 consumers}` {
		t.Error(text)
	}
	for number := uint64(0); number < 10; number++ { // Without a consumer, messages are lost.
		slot, err := p.Acquire(background, nil)
		must(t, err)
		address := uint64(base.Base) + uint64(slot.Index())*base.SlotStride
		if slot.Number() != number || slot.Index() != int(number%3) || slot.Size() != ringSize || slot.At(0).Number() != address {
			t.Errorf("message %d is %v", number, slot)
		}
		must(t, d.Instance().Fill(slot.At(0), ringSize, uint32(number), 1))
		expect(t, d.Instance().Fill(slot.At(0), ringSize+1, uint32(number), 1), ErrInvalidArgument)
		expect(t, CopyFromSlice(d.Instance(), slot.At(1), make([]byte, ringSize)), ErrInvalidArgument)
		must(t, slot.Publish(number, 0))
		expect(t, slot.Publish(number, 0), ErrStaleHandle)
		expect(t, d.Instance().Fill(slot.At(0), ringSize, 0, 1), ErrStaleHandle)
	}

	expect(t, new(RingSlot).Publish(1, 0), ErrInvalidArgument)
	must(t, new(RingSlot).Drop())
	must(t, new(RingMessage).Release())

	// What is dropped comes again.
	stream := newStream(t, d)
	slot, err := p.Acquire(background, stream)
	must(t, err)
	_, err = p.Acquire(background, nil)
	expect(t, err, ErrInvalidState)
	must(t, slot.Drop())
	again, err := p.Acquire(background, nil)
	must(t, err)
	if again.Number() != 10 {
		t.Errorf("another slot comes: %v", again)
	}
	expect(t, again.Publish(ringSize+1, 0), ErrInvalidArgument)
	must(t, again.Publish(ringSize, 0))

	_, err = p.Acquire(background, nil)
	must(t, err)
	must(t, p.Finish(within(t, time.Millisecond)))
	_, err = p.Acquire(background, nil)
	expect(t, err, ErrInvalidState)
	must(t, p.Close())
	must(t, p.Close())
	_, err = p.Info()
	expect(t, err, ErrStaleHandle)
}

func TestRingsThatAreRefused(t *testing.T) {
	d := device(t)
	p := newRing(t, d, RingOptions{})
	defer func() { must(t, p.Close()) }()
	for _, options := range []RingOptions{{}, {SlotSize: 1, Slots: 257}, {SlotSize: 1, MaxConsumers: 65},
		{SlotSize: 1, FirstConsumers: 5}, {SlotSize: 1, Name: "\x00"}} {
		_, err := d.NewRing(options)
		expect(t, err, ErrInvalidArgument)
	}
	handle, err := p.Export()
	must(t, err)
	_, err = d.Instance().OpenRing(handle, RingOpenOptions{})
	expect(t, err, ErrInvalidState) // This process has it itself.
	_, err = d.Instance().OpenRing(handle, RingOpenOptions{Timeout: -1})
	expect(t, err, ErrInvalidArgument)
	_, err = d.Instance().OpenRing(ShareHandle{}, RingOpenOptions{})
	expect(t, err, ErrInvalidArgument)
	var none *RingConsumer
	_, err = none.Wait(context.Background(), nil)
	expect(t, err, ErrInvalidArgument)
	err = none.Each(context.Background(), nil, nil)
	expect(t, err, ErrInvalidArgument)
	if !strings.Contains(err.Error(), "RingConsumer.Each: the function is nil") {
		t.Error(err)
	}
	var missing *RingMessage
	must(t, missing.Release())
}

// consumeRing is the child of a test: it says how many messages it got until the ring was finished, and closes or forgets it.
func consumeRing(t *testing.T, closes bool) {
	from := starter(t)
	d := device(t)
	since := settle(t)
	c, err := d.Instance().OpenRing(from.hearHandle(), RingOpenOptions{Timeout: shareLimit, Name: "theirs"})
	must(t, err)
	from.say("open")
	var stream *Stream
	if from.hear() == "stream" {
		stream = newStream(t, d)
	}
	next := uint64(0)
	must(t, c.Each(within(t, shareLimit), stream, func(message *RingMessage) error {
		if message.Number() != next {
			return fmt.Errorf("message %d comes, and not %d", message.Number(), next)
		}
		next++
		if stream != nil {
			must(t, stream.Synchronize())
		}
		return checkMessage(c, stream, message)
	}))
	_, err = c.Wait(context.Background(), nil)
	expect(t, err, ErrClosed)
	if closes {
		must(t, c.Close())
	}
	from.say("%d messages", next)
	if !closes {
		collectUntil(t, "gone", since.is(1, 0))
	}
	if count := lives(t, d); count != 0 {
		t.Errorf("%d memories live", count)
	}
}

// lives returns how many memories of an instance live.
func lives(t *testing.T, d *Device) uint64 {
	t.Helper()
	stats, err := d.Instance().Stats()
	must(t, err)
	return stats.LiveCount
}

// One consumer orders its work by a stream, the other waits on the CPU.
func TestRingOfTwoConsumers(t *testing.T) {
	if inChild() {
		consumeRing(t, true)
		return
	}
	d := device(t)
	p := newRing(t, d, RingOptions{MaxConsumers: 2, FirstConsumers: 2})
	if _, err := p.Acquire(within(t, time.Millisecond), nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without consumers: %v", err)
	}
	handle, err := p.Export()
	must(t, err)
	peers := []*peer{startPeer(t), startPeer(t)}
	for index, to := range peers {
		to.sayHandle(handle)
		to.expect("open")
		to.say("%s", []string{"no", "stream"}[index])
	}
	stream := newStream(t, d)
	produce(t, p, nil, 50)
	produce(t, p, stream, 50)
	must(t, p.Finish(within(t, shareLimit)))
	for _, to := range peers {
		to.expect("100 messages")
		to.wait()
	}
	must(t, stream.Synchronize())
	must(t, p.Close())
}

// A slot or message that was taken in no stream is passed on behind the work that uses it. Work of others is refused.
func TestRingOfWorkInOtherStreams(t *testing.T) {
	const count = 12
	late := func(s *Stream) { must(t, s.Launch(func() { time.Sleep(5 * time.Millisecond) })) }
	// hold keeps a stream busy until the function that it returns is called.
	hold := func(s *Stream) func() {
		gate := make(chan struct{})
		var once sync.Once
		open := func() { once.Do(func() { close(gate) }) }
		t.Cleanup(open)
		must(t, s.Launch(func() { <-gate }))
		return open
	}
	refused := func(pass func() error, what string) {
		t.Helper()
		if detail := expect(t, pass(), ErrBusy); detail.Message !=
			"work of another stream uses the "+what+"; synchronize the stream, or take the slot with it" {
			t.Errorf("the message is %q", detail.Message)
		}
	}
	if inChild() {
		from := starter(t)
		d := device(t)
		c, err := d.Instance().OpenRing(from.hearHandle(), RingOpenOptions{Timeout: shareLimit})
		must(t, err)
		from.say("open")
		named, other := newStream(t, d), newStream(t, d)
		var copies []*Pinned[byte]
		delay := late
		use := func(message *RingMessage) error {
			p := newPinned[byte](t, d, int(message.Size()))
			copies = append(copies, p)
			delay(other)
			return other.Copy(p.At(0), message.At(0), p.Size())
		}
		message, err := c.Wait(within(t, shareLimit), named)
		must(t, err)
		must(t, named.Synchronize())
		var open func()
		delay = func(s *Stream) { open = hold(s) }
		must(t, use(message))
		delay = late
		refused(message.Release, "message")
		open()
		must(t, other.Synchronize())
		must(t, message.Release())
		must(t, c.Each(within(t, shareLimit), nil, use))
		must(t, other.Synchronize())
		for number, p := range copies {
			if string(p.Slice()) != string(ringMessage(uint64(number))) {
				t.Errorf("message %d has other bytes", number)
			}
		}
		must(t, c.Close())
		from.say("%d messages", len(copies))
		return
	}
	d := device(t)
	p := newRing(t, d, RingOptions{Slots: 2, FirstConsumers: 1})
	handle, err := p.Export()
	must(t, err)
	to := startPeer(t)
	to.sayHandle(handle)
	to.expect("open")
	first, second := newStream(t, d), newStream(t, d)
	for number := 0; number < count; number++ {
		slot, err := p.Acquire(within(t, shareLimit), nil)
		must(t, err)
		content := ringMessage(slot.Number())
		open := func() {}
		if number == 4 {
			open = hold(first)
		} else {
			late(first)
		}
		must(t, CopyFromSliceAsync(first, slot.At(0), content))
		publish := func() error { return slot.Publish(uint64(len(content)), ringTag(slot.Number())) }
		switch number {
		case 4: // The work of two streams uses it.
			openSecond := hold(second)
			must(t, CopyFromSliceAsync(second, slot.At(500), content[500:]))
			refused(publish, "slot")
			open()
			openSecond()
			must(t, first.Synchronize())
		case 5:
			must(t, slot.Drop()) // Waits for it.
			if slot, err = p.Acquire(within(t, shareLimit), second); err != nil || first.busy() {
				t.Fatal("a slot comes again while work uses it: ", err)
			}
			must(t, second.Synchronize())
			open = hold(first)
			must(t, CopyFromSliceAsync(first, slot.At(0), content))
			refused(publish, "slot")
			open()
			must(t, first.Synchronize())
		}
		must(t, publish())
	}
	must(t, p.Finish(within(t, shareLimit)))
	to.expect("12 messages")
	to.wait()
	must(t, first.Synchronize())
	must(t, second.Synchronize())
	must(t, p.Close())
}

func TestRingOfAForgottenProducer(t *testing.T) {
	if inChild() {
		consumeRing(t, false)
		return
	}
	d := device(t)
	to := startPeer(t)
	since := settle(t)
	func() {
		p := newRing(t, d, RingOptions{Slots: 20, FirstConsumers: 1})
		handle, err := p.Export()
		must(t, err)
		to.sayHandle(handle)
		to.expect("open")
		to.say("no")
		produce(t, p, nil, 20)
	}()
	collectUntil(t, "gone when its consumer has left", since.is(1, 0))
	to.expect("20 messages")
	to.wait()
}

func TestRingOfADeadConsumer(t *testing.T) {
	if inChild() {
		from := starter(t)
		i := open(t)
		c, err := i.OpenRing(from.hearHandle(), RingOpenOptions{})
		must(t, err)
		from.say("open")
		first, err := c.Wait(within(t, shareLimit), nil)
		must(t, err)
		must(t, checkMessage(c, nil, first))
		from.say("holds")
		from.hear()
		return
	}
	p := newRing(t, device(t), RingOptions{Slots: 2, FirstConsumers: 1})
	handle, err := p.Export()
	must(t, err)
	to := startPeer(t)
	to.sayHandle(handle)
	to.expect("open")
	produce(t, p, nil, 2)
	to.expect("holds")
	if _, err := p.Acquire(within(t, 20*time.Millisecond), nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("with all slots held: %v", err)
	}
	expect(t, p.Close(), ErrBusy)
	must(t, to.command.Process.Kill())
	_ = to.command.Wait()
	produce(t, p, nil, 10)
	must(t, p.Finish(within(t, shareLimit)))
	must(t, p.Close())
}

func TestRingOfADeadProducer(t *testing.T) {
	if inChild() {
		from := starter(t)
		p := newRing(t, device(t), RingOptions{FirstConsumers: 1})
		handle, err := p.Export()
		must(t, err)
		from.sayHandle(handle)
		produce(t, p, nil, 4)
		from.say("published")
		from.hear()
		return
	}
	i := open(t)
	d, err := i.Device(0)
	must(t, err)
	needs(t, d, CapabilityShareEvents)
	from := startPeer(t)
	c, err := i.OpenRing(from.hearHandle(), RingOpenOptions{})
	must(t, err)
	from.expect("published")
	// They are released in the reverse order, as by defer.
	var messages []*RingMessage
	for number := uint64(0); number < 3; number++ {
		message, err := c.Wait(within(t, shareLimit), nil)
		must(t, err)
		if message.Number() != number {
			t.Errorf("message %d comes, and not %d", message.Number(), number)
		}
		must(t, checkMessage(c, nil, message))
		messages = append(messages, message)
	}
	must(t, messages[2].Release())
	must(t, messages[1].Release())
	info, err := c.Info()
	must(t, err)
	if info.HeldCount != 3 || info.Producer {
		t.Errorf("it says %v", info)
	}
	must(t, messages[0].Release())
	if info, err = c.Info(); err != nil || info.HeldCount != 0 || info.Released != 3 {
		t.Errorf("it says %v (%v)", info, err)
	}
	last, err := c.Wait(within(t, shareLimit), nil)
	must(t, err)
	must(t, from.command.Process.Kill())
	_ = from.command.Wait()
	_, err = c.Wait(within(t, shareLimit), nil)
	expect(t, err, ErrPeerGone)
	expect(t, last.Release(), ErrPeerGone)
	must(t, c.Close())
	must(t, last.Release())
}

func TestARingThatIsDroppedWithASlotIsFreed(t *testing.T) {
	if inChild() {
		from := starter(t)
		d := device(t)
		since := settle(t)
		func() {
			c, err := d.Instance().OpenRing(from.hearHandle(), RingOpenOptions{Timeout: shareLimit})
			must(t, err)
			from.say("open")
			message, err := c.Wait(within(t, shareLimit), nil)
			must(t, err)
			must(t, checkMessage(c, nil, message))
		}()
		collectUntil(t, "freed", since.is(1, 0))
		since.exactly(t, 1, 0)
		from.say("freed")
		return
	}
	d := device(t)
	since := settle(t)
	func() {
		p := newRing(t, d, RingOptions{Slots: 2, FirstConsumers: 1})
		handle, err := p.Export()
		must(t, err)
		to := startPeer(t)
		to.sayHandle(handle)
		to.expect("open")
		produce(t, p, nil, 4) // More than the slots.
		to.expect("freed")
		to.wait()
		s := newStream(t, d)
		slot, err := p.Acquire(within(t, shareLimit), s)
		must(t, err)
		must(t, CopyFromSliceAsync(s, slot.At(0), ringMessage(4)))
	}()
	collectUntil(t, "freed", since.is(1, 0))
	since.exactly(t, 1, 0)
}

// A stream that was synchronized may be closed before what it has filled is passed on.
func TestRingSlotOfAClosedStream(t *testing.T) {
	d := device(t)
	ring, err := d.NewRing(RingOptions{SlotSize: 64, Slots: 2})
	must(t, err)
	for _, end := range []func(*RingSlot) error{(*RingSlot).Drop, func(s *RingSlot) error { return s.Publish(64, 0) }} {
		for _, used := range []bool{false, true} {
			s, err := d.NewStream(StreamOptions{})
			must(t, err)
			slot, err := ring.Acquire(context.Background(), s)
			must(t, err)
			if used {
				must(t, s.Fill(slot.At(0), 64, 1, 1))
				must(t, s.Synchronize())
			}
			must(t, s.Close())
			must(t, end(slot))
		}
	}
	must(t, ring.Close())
}
