module github.com/gpumem/gpumem/bindings/go/gpumem

go 1.19
