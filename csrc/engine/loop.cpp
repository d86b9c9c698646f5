namespace dflash {}
