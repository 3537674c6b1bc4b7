// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//go:build cgo

package gpumem

import (
	"fmt"
	"strings"
)

// constant is a constant of this package: its type, its name here and in C, and its value.
type constant struct {
	kind, name, inC string
	value           int64
}

// nameOf returns the name of a constant; the type and the number if there is none.
func nameOf(kind string, value int64) string {
	for i := range constants {
		if c := &constants[i]; c.value == value && c.kind == kind {
			return c.name
		}
	}
	return fmt.Sprintf("%s(%d)", kind, value)
}

// nameOfFlags returns the names of all flags that are set, and the number of those that have none.
func nameOfFlags(kind string, value uint64) string {
	var names []string
	for i := range constants {
		if c := &constants[i]; c.kind == kind && value&uint64(c.value) != 0 {
			names = append(names, c.name)
			value &^= uint64(c.value)
		}
	}
	if value != 0 || len(names) == 0 {
		names = append(names, fmt.Sprintf("%s(%#x)", kind, value))
	}
	return strings.Join(names, "|")
}

// argumentNames has words for arguments in messages, and the words of this package.
var argumentNames = map[string]string{
	"NULL":        "nil",
	"location_id": "locationID", "max_level": "level", "numa_node": "NUMANode", "pin_budget": "PinBudget", "transfer_bytes": "TransferBytes", "transfer_threads": "TransferThreads",
	"value_size": "valueSize",
	"slot_count": "Slots", "consumers_max": "MaxConsumers", "consumers_first": "FirstConsumers",
	"initial_size": "InitialSize", "low_water": "LowWater", "token_size": "the size of Token", "handle_types": "HandleTypes", "device_count": "DeviceCount",
	"lock_piece": "LockPiece", "vmm_granularity": "VMMGranularity", "device_bytes": "DeviceBytes", "lock_mode": "LockMode",
	"numa_nodes": "NUMANodes", "register_count_max": "RegisterCountMax",
	"links_max": "MaxLinks", "names_max": "MaxNames", "versions_max": "MaxVersions", "fds_max": "MaxFiles", "bytes_max": "MaxBytes",
}

// functionName returns what a program calls in place of a function of C; another name is returned as it is.
func functionName(inC string) string {
	for i := range functionNames {
		if functionNames[i].inC == inC {
			return functionNames[i].name
		}
	}
	return inC
}

// constantName returns the name of a constant of C, or the type of the constants whose names begin so; "" for another.
func constantName(inC string) string {
	if inC == "GPUMEM_CLOSE_FORCE" {
		return "Instance.CloseForce"
	}
	for i := range constants {
		if c := &constants[i]; c.inC == inC {
			return c.name
		} else if strings.HasSuffix(inC, "_") && strings.HasPrefix(c.inC, inC) {
			return c.kind
		}
	}
	return ""
}

// translate returns a text of the library with the names of this package in place of those of C. Names that this package
// does not know stay: those of a newer library, and of environment variables.
func translate(text string) string { return translateWith(text, nil) }

func translateWith(text string, words map[string]string) string {
	isWord := func(c rune) bool {
		return c == '_' || c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z'
	}
	var result strings.Builder
	for text != "" {
		end := strings.IndexFunc(text, func(c rune) bool { return !isWord(c) })
		if end < 0 {
			end = len(text)
		}
		word := text[:end]
		text = text[end:]
		if known := functionName(word); known != word {
			word = known
			text = strings.TrimPrefix(text, "()")
		} else if strings.HasPrefix(word, "GPUMEM_") {
			if known := constantName(word); known != "" {
				word = known
			}
		} else if known, ok := lifetimeWords[word]; ok {
			word = known
		} else if known, ok := words[word]; ok {
			word = known
		}
		next := strings.IndexFunc(text, isWord)
		if next < 0 {
			next = len(text)
		}
		result.WriteString(word)
		result.WriteString(text[:next])
		text = text[next:]
	}
	return phrases.Replace(result.String())
}

// phrases has what this package says in other words.
var phrases = strings.NewReplacer(
	"its handle after", "it after",
	"call HostAccess.Close first", "end its View or close its HostAccess first",
	"stream of another thread", "stream of another thread", // The stream is that of a thread.
	"another thread", "another goroutine",
	"this thread", "this goroutine",
	"one thread at a time", "one goroutine at a time",
)

// lifetimeWords are the words of this package for the end of an object.
var lifetimeWords = map[string]string{"destroy": "close", "destroyed": "closed", "destroying": "closing"}
