module github.com/gpumem/gpumem/bindings/go

go 1.19
