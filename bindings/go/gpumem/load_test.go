// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

package gpumem

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// useEverythingFirst calls each function that needs no object, and returns the errors.
func useEverythingFirst() map[string]error {
	_, open := Open(Options{})
	_, byDefault := Default()
	_, probe := Probe(BackendHost)
	_, version := Version()
	_, statuses := Statuses()
	_, capabilities := Capabilities()
	_, info := ErrBusy.Info()
	_, current := HostSetCurrentDevice(-1)
	return map[string]error{"Open": open, "Default": byDefault, "Probe": probe, "Version": version, "Statuses": statuses,
		"Capabilities": capabilities, "Info": info, "HostSetCurrentDevice": current,
		"SetLogFunction": SetLogFunction(LogError, nil)}
}

// expectNoLibrary checks that every first call fails, with an error that names the library and says what is wrong.
func expectNoLibrary(t *testing.T, variable, mention string) {
	if inChild() {
		for name, err := range useEverythingFirst() {
			if !errors.Is(err, ErrLibrary) || !strings.Contains(err.Error(), mention) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if VersionNumber() != 0 || FeatureBackendHost.Supported() || ErrBusy.Error() != "ErrBusy" ||
			Status(-5).Name() != "GPUMEM_ERROR_?" {
			t.Error("without the library something is known, or the name of a status is not")
		}
		fmt.Println("went on")
		return
	}
	output, err := child(t, variable)
	if err != nil || !strings.Contains(output, "went on") {
		t.Errorf("%v: %s", err, output)
	}
}

func TestALibraryThatIsMissing(t *testing.T) {
	if !loadsLibrary {
		t.Skip("a linked program does not start; with the tag gpumem_dlopen it does")
	}
	expectNoLibrary(t, "GPUMEM_LIBRARY=/nowhere/libgpumem.so.0", "/nowhere/libgpumem.so.0: cannot open shared object file: No such file or directory; set the environment variable GPUMEM_LIBRARY")
}

func TestALibraryThatIsNone(t *testing.T) {
	if !loadsLibrary {
		t.Skip("a linked program does not start; with the tag gpumem_dlopen it does")
	}
	path := filepath.Join(os.TempDir(), "gpumem-no-library-of-the-go-tests")
	if !inChild() {
		must(t, os.WriteFile(path, []byte("no library"), 0o600))
		defer os.Remove(path)
	}
	expectNoLibrary(t, "GPUMEM_LIBRARY="+path, path)
}

func TestALibraryWithoutOurFunctions(t *testing.T) {
	if !loadsLibrary {
		t.Skip("a linked program does not start; with the tag gpumem_dlopen it does")
	}
	expectNoLibrary(t, "GPUMEM_LIBRARY=libm.so.6", "no function gpumem_table_get")
}

// GPUMEM_GO_OTHER_VERSION has the path of a library of another version, which tests/bindings/go.py builds, and a part of
// the expected error.
func TestALibraryOfAnotherVersion(t *testing.T) {
	words := strings.SplitN(os.Getenv("GPUMEM_GO_OTHER_VERSION"), "=", 2)
	if len(words) < 2 {
		t.Skip("GPUMEM_GO_OTHER_VERSION names no library")
	}
	if loadsLibrary {
		expectNoLibrary(t, "GPUMEM_LIBRARY="+words[0], words[1])
	} else {
		expectNoLibrary(t, "LD_LIBRARY_PATH="+filepath.Dir(words[0]), words[1])
	}
}
