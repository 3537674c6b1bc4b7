// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

import (
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"unicode"
)

// nameInC turns bufferID into buffer_id, and type_, which would be a keyword, into type.
func nameInC(name string) string {
	var text strings.Builder
	runes := []rune(strings.TrimSuffix(name, "_"))
	for i, r := range runes {
		if unicode.IsUpper(r) && i > 0 && unicode.IsLower(runes[i-1]) {
			text.WriteByte('_')
		}
		text.WriteRune(unicode.ToLower(r))
	}
	return text.String()
}

// ownLayout is the layout of the interface in this package, in the format of the layout file.
func ownLayout() map[string]string {
	lines := map[string]string{}
	for name, value := range layoutStructs {
		kind := reflect.TypeOf(value)
		lines["struct "+name] = fmt.Sprintf("size %d align %d", kind.Size(), kind.Align())
		for i := 0; i < kind.NumField(); i++ {
			field := kind.Field(i)
			inC := nameInC(field.Name)
			lines["field "+name+"."+inC] = fmt.Sprintf("offset %d size %d", field.Offset, field.Type.Size())
		}
	}
	// The table has all functions in their order.
	list := append(functions(), "gpumem_table_get")
	lines["struct gpumem_table"] = fmt.Sprintf("size %d align 8", 8*len(list))
	lines["field gpumem_table.struct_size"] = "offset 0 size 8"
	for i, name := range list {
		lines["function "+name] = ""
		if name != "gpumem_table_get" {
			lines["field gpumem_table."+name] = fmt.Sprintf("offset %d size 8", 8*(i+1))
		}
	}
	for name, value := range layoutConstants {
		lines["constant "+name] = fmt.Sprint(value)
	}
	return lines
}

func TestLayoutIsThatOfTheHeaders(t *testing.T) {
	path := os.Getenv("GPUMEM_LAYOUT")
	if path == "" {
		t.Skip("GPUMEM_LAYOUT names no layout file")
	}
	content, err := os.ReadFile(path)
	must(t, err)
	own := ownLayout()
	for _, line := range strings.Split(strings.TrimSpace(string(content)), "\n") {
		words := strings.SplitN(line, " ", 3)
		if len(words) < 2 {
			t.Fatalf("a line that is none: %q", line)
		}
		key, value := words[0]+" "+words[1], strings.Join(words[2:], " ")
		if mine, known := own[key]; !known {
			t.Errorf("unknown to this package: %s", line)
		} else if mine != value {
			t.Errorf("%s: here it is %q", line, mine)
		}
		delete(own, key)
	}
	for key := range own {
		t.Errorf("unknown to the headers: %s", key)
	}
}
